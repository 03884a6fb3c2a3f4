package web

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

type keyPage struct {
	Schema string    `json:"schema"`
	At     time.Time `json:"at"`
	Topic  string    `json:"topic"`
	waitingKey
	Tabs []delayq.State `json:"-"`
}

// key shows one key of a topic, whether it has ready jobs or not.
func (h *Handler) key(v *view) (any, error) {
	row, err := h.known(v)
	if err != nil {
		return nil, err
	}
	name := v.query.Get("key")
	k, err := read(h, v.Request.Context(), "key\x00"+v.Topic+"\x00"+name, func(ctx context.Context) (*delayq.KeyInfo, error) {
		return h.insp.Key(ctx, v.Topic, name)
	})
	if err != nil {
		return nil, err
	}
	return &keyPage{Schema: "delayq.web.key/1", At: utc(row.at), Topic: v.Topic, waitingKey: waitingKeyOf(k, row.perKey), Tabs: states}, nil
}

// keyActs has the right that each act on a key needs.
var keyActs = map[string]Right{"hold": RightPause, "pause": RightPause, "resume": RightPause, "limits": RightLimits}

// Acts lists what can be done with the key.
func (k waitingKey) Acts() []string {
	switch {
	case k.Paused:
		return []string{"resume", "limits"} // a hold would change nothing
	case !k.HeldUntil.IsZero():
		return []string{"hold", "pause", "resume", "limits"}
	}
	return []string{"hold", "pause", "limits"}
}

// KeyActs has the acts on keys of the topic that the page may offer. A list asks once for all rows.
func (v *view) KeyActs() map[string]bool {
	may := map[Right]bool{RightPause: v.Can(string(RightPause)), RightLimits: v.Can(string(RightLimits))}
	list := make(map[string]bool)
	for do, right := range keyActs {
		if may[right] {
			list[do] = true
		}
	}
	return list
}

// Bounds of holds and limits, which the library has too.
const (
	shortestHold = time.Millisecond
	longestHold  = 36_500 * 24 * time.Hour
	mostWeight   = 1000
	mostOfKey    = 1000 // running jobs
	mostStarts   = 1_000_000
	longestRate  = 366 * 24 * time.Hour
)

// A keyForm is the form of an act on a key.
type keyForm struct {
	Schema string `json:"schema"`
	Topic  string `json:"topic"`
	jobKey
	Do      string `json:"do"`
	Weight  int    `json:"weight,omitempty"` // of limits: what the key has
	Running int    `json:"running,omitempty"`
	typedRate
	Ordered bool `json:"-"` // the jobs of the key run in order
}

// keyAct returns what is to be done with which key of a topic that exists.
func (h *Handler) keyAct(v *view) (do, key string, row *topicRow, err error) {
	do, key = v.query.Get("do"), v.query.Get("key")
	right, ok := keyActs[do]
	if !ok {
		return "", "", nil, errNoPage
	}
	if err := h.may(v, right, v.Topic); err != nil {
		return "", "", nil, err
	}
	row, err = h.known(v)
	return do, key, row, err
}

// keyForm shows the form of an act on a key. That of its limits has those that the key has.
func (h *Handler) keyForm(v *view) (any, error) {
	do, key, row, err := h.keyAct(v)
	if err != nil {
		return nil, err
	}
	k, err := h.insp.Key(v.Request.Context(), v.Topic, key)
	if err != nil {
		return nil, err
	}
	p := &keyForm{Schema: "delayq.web.form/1", Topic: v.Topic, jobKey: jobKeyOf(key), Do: do, Ordered: row.perKey.Ordered}
	if do != "limits" {
		return p, nil
	}
	p.Weight, p.Running, p.typedRate = k.Weight, k.Limits.Running, typedRateOf(k.Limits.Rate)
	return p, nil
}

// editKey holds, pauses or resumes a key, or sets its limits.
func (h *Handler) editKey(v *view) (any, error) {
	do, key, _, err := h.keyAct(v)
	if err != nil {
		return nil, err
	}
	ctx, c := v.acting(), h.o.client
	switch do {
	case "hold":
		var d time.Duration
		if d, err = v.hold(); err != nil {
			return nil, err
		}
		err = c.HoldKey(ctx, v.Topic, key, d)
	case "pause":
		err = c.PauseKey(ctx, v.Topic, key)
	case "resume":
		err = c.ResumeKey(ctx, v.Topic, key)
	case "limits":
		var l delayq.KeyLimits
		if l, err = v.keyLimits(); err != nil {
			return nil, err
		}
		err = c.SetKeyLimits(ctx, v.Topic, key, l)
	}
	h.shared.forget() // also after an error, whose outcome can be unknown
	if err := v.acted(err); err != nil {
		return nil, err
	}
	return redirect(v.Link("key", "topic", v.Topic, "key", key, "did", "key-"+do)), nil
}

// hold reads the time of a hold.
func (v *view) hold() (time.Duration, error) {
	d, err := span(v.form("for"))
	if err != nil {
		return 0, mistake("for", "%v", err)
	}
	if d < shortestHold || d > longestHold {
		return 0, mistake("for", "%q must be from 1ms to 36500d", v.form("for"))
	}
	return d, nil
}

// keyLimits reads the limits of a form. An empty field is the default.
func (v *view) keyLimits() (l delayq.KeyLimits, err error) {
	if l.Weight, err = v.count("weight", 1, mostWeight); err != nil {
		return l, err
	}
	if l.Running, err = v.count("running", 0, mostOfKey); err != nil {
		return l, err
	}
	l.Rate, err = v.rate("")
	return l, err
}

// count reads a number of a form, 0 if the field is empty.
func (v *view) count(name string, least, most int) (int, error) {
	text := strings.TrimSpace(v.form(name))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, mistake(name, "%q must be a number from %d to %d", text, least, most)
	}
	return n, nil
}

// rate reads a rate of a form with its burst and whether it is strict, from fields whose names
// begin with which. If the field is empty or 0, there is none.
func (v *view) rate(which string) (r delayq.Rate, err error) {
	text, strict := strings.TrimSpace(v.form(which+"rate")), v.form(which+"strict") == "1"
	if text == "" || text == "0" {
		if strict || strings.TrimSpace(v.form(which+"burst")) != "" {
			return r, mistake(which+"rate", "burst and strict need one, such as 100/1m")
		}
		return r, nil
	}
	count, period, _ := strings.Cut(text, "/")
	starts, bad := strconv.Atoi(strings.TrimSpace(count))
	per, wrong := span(period)
	switch {
	case bad != nil || wrong != nil || starts < 1 || per <= 0:
		return r, mistake(which+"rate", "%q must be starts/period, such as 100/1m", text)
	case starts > mostStarts:
		return r, mistake(which+"rate", "%q must have from 1 to %d starts", text, mostStarts)
	case per > longestRate || per < time.Duration(starts)*time.Microsecond:
		return r, mistake(which+"rate", "the period of %q must be from 1µs for each start to 366d", text)
	}
	most := starts
	if strict {
		most = max(1, most-1)
	}
	burst, err := v.count(which+"burst", 1, most)
	if err != nil {
		return r, err
	}
	if r = delayq.Per(starts, per); burst > 0 {
		r = r.Burst(burst)
	}
	if strict {
		r = r.Strict()
	}
	return r, nil
}

// A typedRate is a rate as a form has it.
type typedRate struct {
	Rate   string `json:"rate,omitempty"`
	Burst  int    `json:"burst,omitempty"` // 0: a tenth of the starts
	Strict bool   `json:"strict,omitempty"`
}

// typedRateOf returns a rate as v.rate reads it.
func typedRateOf(r delayq.Rate) (t typedRate) {
	if r == (delayq.Rate{}) {
		return t
	}
	t.Rate, t.Strict = strconv.Itoa(r.Starts())+"/"+exact(r.Period()), r.IsStrict()
	if r.MaxBurst() != delayq.Per(r.Starts(), r.Period()).MaxBurst() { // it was chosen
		t.Burst = r.MaxBurst()
	}
	return t
}

// exact returns a duration as span reads it, without units that are 0 at the end.
func exact(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
