package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/delayq/delayq"
)

// A view is one request and what its template needs besides the data of the page.
type view struct {
	h        *Handler
	w        http.ResponseWriter
	Request  *http.Request
	route    *route
	json     bool
	query    url.Values
	mistakes map[string]string // by the fields of a form; "": of the whole
	views    map[string]bool   // the topics about which Authorize was asked: see Handler.views
	silent   bool              // an act is done, and the audit lacks it

	Page   string
	Topic  string
	Lang   string
	Theme  string // light, dark or "", which follows the system
	Now    time.Time
	Data   any
	Status int
	Error  string
}

const (
	langCookie  = "delayq-lang"
	themeCookie = "delayq-theme"
	maxQuery    = 64 << 10
	maxBody     = 4 << 20
)

func (h *Handler) newView(w http.ResponseWriter, r *http.Request) *view {
	v := &view{h: h, w: w, Request: r, Status: http.StatusOK, Now: time.Now()}
	v.query, _ = url.ParseQuery(r.URL.RawQuery) // parse complains
	v.choose()
	return v
}

// choose sets language and theme: by parameter, then by cookie, then by the option or the browser.
func (v *view) choose() {
	pick := func(name, cookie string, known func(string) bool) string {
		if asked := v.query.Get(name); known(asked) {
			// Without a path it is for the directory of the page, wherever that is mounted.
			http.SetCookie(v.w, &http.Cookie{
				Name: cookie, Value: asked, MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode,
				Secure: v.Request.TLS != nil,
			})
			return asked
		}
		if c, err := v.Request.Cookie(cookie); err == nil && known(c.Value) {
			return c.Value
		}
		return ""
	}
	v.Theme = pick("theme", themeCookie, func(s string) bool { return s == "light" || s == "dark" || s == "system" })
	if v.Theme == "system" {
		v.Theme = ""
	}
	v.Lang = pick("lang", langCookie, func(s string) bool { return catalogs[s] != nil })
	if v.Lang == "" {
		v.Lang = v.h.o.language
	}
	if v.Lang == "" {
		v.Lang = acceptedLanguage(v.Request.Header.Get("Accept-Language"))
	}
}

// parse reads the parameters.
func (v *view) parse() error {
	if len(v.Request.URL.RawQuery) > maxQuery {
		return &refusal{status: http.StatusRequestURITooLong, text: v.T("error.long", maxQuery)}
	}
	if _, err := url.ParseQuery(v.Request.URL.RawQuery); err != nil {
		return &refusal{status: http.StatusBadRequest, text: v.T("error.query")}
	}
	if v.Request.Method == http.MethodPost {
		v.Request.Body = http.MaxBytesReader(v.w, v.Request.Body, maxBody)
		if err := v.Request.ParseForm(); err != nil {
			return &refusal{status: http.StatusBadRequest, text: v.T("error.form", maxBody)}
		}
	}
	v.Topic = v.query.Get("topic")
	return nil
}

// form returns a field of the body.
func (v *view) form(name string) string { return v.Request.PostForm.Get(name) }

// A refusal is an answer with a status and a text for people. With a field, that is a field of a
// form or a parameter.
type refusal struct {
	status int
	text   string
	field  string
}

func (e *refusal) Error() string {
	if e.field != "" {
		return e.field + ": " + e.text
	}
	return e.text
}

// mistake refuses a field.
func mistake(field, format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...), field}
}

// again answers with the form that was sent, with what was typed in it and the mistake beside its
// field. It reports whether it did: not for programs, and not if the form is not the matter.
func (v *view) again(err error) bool {
	rt := v.route
	if v.json || rt == nil || rt.form == nil || v.Request.Method != http.MethodPost {
		return false
	}
	status, text := v.explain(err)
	field := ""
	if no, ok := errors.AsType[*refusal](err); ok && no.field != "" {
		field, text = no.field, no.text
	}
	if status != http.StatusBadRequest && field == "" {
		return false
	}
	data, failed := rt.form(v.h, v)
	if failed != nil {
		return false // the form is about something that is not there
	}
	v.Status, v.mistakes = status, map[string]string{field: text}
	v.render(rt.page, data)
	return true
}

var errNoPage = errors.New("no such page")

// redirect is an answer that leads to another page, by a relative link.
type redirect string

// download is an answer of bytes.
type download struct {
	name string
	body []byte
}

// An errorRecord is the JSON of a failure.
type errorRecord struct {
	Schema string `json:"schema"`
	Error  string `json:"error"`
}

// explain turns an error into a status and a text that shows neither address nor credentials.
func (v *view) explain(err error) (int, string) {
	var no *refusal
	var reply interface{ RedisError() }
	switch {
	case errors.As(err, &no):
		return no.status, no.Error()
	case errors.Is(err, errNoPage):
		return http.StatusNotFound, v.T("error.nopage")
	case errors.Is(err, delayq.ErrNotFound):
		return http.StatusNotFound, v.T("error.notfound")
	case errors.Is(err, delayq.ErrCursor):
		return http.StatusBadRequest, v.T("error.cursor")
	case errors.Is(err, delayq.ErrInvalid):
		return http.StatusBadRequest, err.Error()
	case errors.As(err, &reply):
		return http.StatusServiceUnavailable, v.T("error.refused", redisCode(reply))
	}
	return http.StatusServiceUnavailable, v.T("error.redis")
}

// redisCode returns the first word of an error reply, such as NOPERM or LOADING.
func redisCode(err any) string {
	text := ""
	if e, ok := err.(error); ok {
		text, _, _ = strings.Cut(e.Error(), " ")
	}
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsUpper(r) }) {
		return "ERR"
	}
	return text
}

// fail answers with an error.
func (v *view) fail(err error) {
	if v.Request.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return // nobody is there
	}
	v.Status, v.Error = v.explain(err)
	if v.json {
		v.writeJSON(errorRecord{"delayq.web.error/1", v.Error})
		return
	}
	v.render("error", nil)
}

// notAllowed answers a method that the page does not have.
func (v *view) notAllowed() {
	allow := "GET, HEAD"
	if v.h.o.client != nil && v.route != nil && v.route.post != nil {
		allow += ", POST"
		if v.route.show == nil {
			allow = "POST"
		}
	}
	v.w.Header().Set("Allow", allow)
	v.fail(&refusal{status: http.StatusMethodNotAllowed, text: v.T("error.method")})
}

// show answers with the data of a page.
func (v *view) show(data any) {
	switch d := data.(type) {
	case redirect:
		if v.silent { // all redirects have parameters
			d += "&unrecorded=1"
		}
		v.w.Header().Set("Location", string(d))
		v.w.WriteHeader(http.StatusSeeOther)
	case download:
		v.w.Header().Set("Content-Type", "application/octet-stream")
		v.w.Header().Set("Content-Disposition", `attachment; filename="`+d.name+`"`)
		v.w.Header().Set("Content-Length", strconv.Itoa(len(d.body)))
		_, _ = v.w.Write(d.body) // or the other side has gone
	default:
		if v.json {
			v.writeJSON(data)
			return
		}
		v.render(v.Page, data)
	}
}

func (v *view) writeJSON(data any) {
	body, err := json.Marshal(data)
	if err != nil {
		v.Status, body = http.StatusInternalServerError, []byte(`{"schema":"delayq.web.error/1","error":"internal error"}`)
	}
	v.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	v.w.WriteHeader(v.Status)
	_, _ = v.w.Write(append(body, '\n'))
}

// render executes a template: the whole page, or only its living part for a refresh.
func (v *view) render(name string, data any) {
	v.Data = data
	t := pages[name]
	part := "layout"
	if v.Request.Header.Get("HX-Request") == "true" && v.Live() {
		part = "live"
	}
	var body bytes.Buffer
	if err := t.ExecuteTemplate(&body, part, v); err != nil {
		body.Reset()
		v.Status = http.StatusInternalServerError
		body.WriteString("internal error\n")
		v.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
		v.w.Header().Set("Content-Language", v.Lang)
	}
	v.w.WriteHeader(v.Status)
	_, _ = v.w.Write(body.Bytes())
}

// What follows is for templates.

// Mistake returns what is wrong with a field of a form, or with all of it.
func (v *view) Mistake(field string) string { return v.mistakes[field] }

// Typed returns what was typed into a field, or what it begins with.
func (v *view) Typed(field string, first any) string {
	if v.Request.Method == http.MethodPost {
		return v.form(field)
	}
	if first == nil {
		return ""
	}
	return fmt.Sprint(first)
}

// Checked reports whether a box was checked, or is at first.
func (v *view) Checked(field string, first bool) bool {
	if v.Request.Method == http.MethodPost {
		return v.form(field) == "1"
	}
	return first
}

// Live reports whether the page refreshes itself.
func (v *view) Live() bool {
	return v.route != nil && !v.route.plain && v.Error == "" && len(v.mistakes) == 0 && v.Request.Method == http.MethodGet
}

// Self is the link to this page.
func (v *view) Self() string { return v.Link(v.Page) + v.with() }

// SelfWith is the link to this page with one parameter set.
func (v *view) SelfWith(name, value string) string {
	if v.Request.Method != http.MethodGet {
		return "topics?" + url.Values{name: {value}}.Encode()
	}
	return v.Page + "?" + v.changed(name, value).Encode()
}

// SelfJSON is the link to the JSON of this page.
func (v *view) SelfJSON() string { return v.Page + ".json" + v.with() }

func (v *view) with() string {
	q := v.changed("", "")
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// passing are the parameters that the links of a page do not take along: those of language and
// theme, and what an act has done that led to the page.
var passing = []string{"lang", "theme", "did", "n", "failed", "open", "unrecorded"}

// changed returns the parameters without those that pass, and with one set.
func (v *view) changed(name, value string) url.Values {
	q := make(url.Values, len(v.query))
	for k, list := range v.query {
		if !slices.Contains(passing, k) {
			q[k] = list
		}
	}
	if name != "" {
		q.Set(name, value)
	}
	return q
}

// Link returns a relative link with parameters: names and values by turns.
func (v *view) Link(page string, pairs ...string) string {
	q := make(url.Values, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" || pairs[i] == "id" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return page
	}
	return page + "?" + q.Encode()
}

// Can reports whether the page may offer an act.
func (v *view) Can(right string) bool { return v.CanOn(right, v.Topic) }

// CanOn is Can for a topic.
func (v *view) CanOn(right, topic string) bool {
	return v.h.o.client != nil && v.h.may(v, Right(right), topic) == nil
}

// Acts reports whether the page can act at all.
func (v *view) Acts() bool { return v.h.o.client != nil }

// Prefix returns the prefix of the queue, or "" if that is what every queue has.
func (v *view) Prefix() string {
	if prefix := v.h.insp.Prefix(); prefix != "delayq" {
		return prefix
	}
	return ""
}

// Badge returns the word beside it.
func (v *view) Badge() string { return v.h.o.badge }

// Every returns the time between two refreshes in milliseconds.
func (v *view) Every() int64 { return v.h.o.every.Milliseconds() }

// Actor returns who acts.
func (v *view) Actor() string {
	if v.h.o.actor != nil {
		if name := v.h.o.actor(v.Request); name != "" {
			return name
		}
	}
	return "web"
}

// Named reports whether the actor is known.
func (v *view) Named() bool { return v.h.o.actor != nil }

// Did returns the outcome of an act that led to this page, or "".
func (v *view) Did() string {
	did := v.query.Get("did")
	if !v.Has("did."+did) || did == "" {
		return ""
	}
	n, err := strconv.ParseInt(v.query.Get("n"), 10, 64)
	if err != nil {
		n = 1
	}
	text := v.T("did."+did, number(n))
	if failed, err := strconv.ParseInt(v.query.Get("failed"), 10, 64); err == nil && failed > 0 {
		text += " " + v.T("did.failed", number(failed))
	}
	if open, err := strconv.ParseInt(v.query.Get("open"), 10, 64); err == nil && open > 0 {
		text += " " + v.T("did.open", number(open))
	}
	return text
}

// Unrecorded reports whether the audit lacks the act that led to this page.
func (v *view) Unrecorded() bool { return v.query.Get("unrecorded") == "1" }
