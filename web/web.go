// Package web is the web page of delayq: an [http.Handler] that shows what a queue holds, says why
// a job is not running, and, if it is given a client, acts on jobs.
//
//	page, err := web.New(delayq.NewInspector(rdb), web.Actions(client))
//	mux.Handle("/admin/delayq/", page)
//
// The page can be mounted under any path and behind any proxy. It needs no setting for that,
// because all its links are relative and all its pages lie in one directory. Without [Actions] it
// has nothing to write with. Without [Authorize] everyone who reaches the handler may use it.
package web

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/friend"
)

// library has what delayq does for its friends.
var library = friend.Of(new(delayq.Client))

// A Right is what a request wants to do. [Authorize] decides about it.
type Right string

// The rights. Payload is the right to see what a payload holds, and Headers go with it.
const (
	RightView       Right = "view"
	RightPayload    Right = "payload"
	RightEnqueue    Right = "enqueue"
	RightCancel     Right = "cancel"
	RightReschedule Right = "reschedule" // also: run now, and set a priority
	RightRevive     Right = "revive"
	RightBury       Right = "bury"
	RightPurge      Right = "purge"
	RightPause      Right = "pause"  // also: resume, and hold a key
	RightLimits     Right = "limits" // set the limits of a key
	RightSchedule   Right = "schedule"
)

// A Handler is the page. [New] returns it. It is safe for concurrent use.
type Handler struct {
	insp   *delayq.Inspector
	o      options
	cross  *http.CrossOriginProtection
	shared cache
	rates  rates
	runs   bulks
}

// An Option configures a [Handler].
type Option func(*options)

type options struct {
	client    *delayq.Client
	authorize func(*http.Request, Right, string) error
	actor     func(*http.Request) string
	visible   func(*http.Request, string) bool
	payloads  []payloadRule
	links     func(*delayq.JobInfo) []Link
	badge     string
	language  string
	every     time.Duration
	origins   []string
	outboxes  []outbox
	errs      []error
}

func (o *options) refuse(format string, args ...any) {
	o.errs = append(o.errs, fmt.Errorf(format, args...))
}

// Actions lets the page act on jobs, topics, keys and schedules through a client, which must be one
// of the same prefix and Redis as the inspector. Without it the page has no buttons, and answers
// every POST with 405.
func Actions(c *delayq.Client) Option {
	return func(o *options) {
		if o.client = c; c == nil {
			o.refuse("Actions: the client is nil")
		}
	}
}

// Authorize is called for every request except those for style sheet and scripts, with the right
// that it needs and a topic, or "" if it is about none. It is also called to decide which buttons a
// page has and whether it shows payloads. If f returns an error, the right is refused; a request
// that needs it is answered with 403 and the text of the error.
//
// A page about several topics calls f for each of them, and leaves those whose RightView is refused
// out of lists and sums, so f should be fast. An entry of the audit without a topic can be about
// jobs of any topic. It is shown to those to whom no topic is refused.
func Authorize(f func(r *http.Request, right Right, topic string) error) Option {
	return func(o *options) {
		if o.authorize = f; f == nil {
			o.refuse("Authorize: the function is nil")
		}
	}
}

// Actor returns the name under which acts are recorded in the audit: see [delayq.WithActor].
// Without it, and for an empty name, the name is "web".
func Actor(f func(r *http.Request) string) Option {
	return func(o *options) {
		if o.actor = f; f == nil {
			o.refuse("Actor: the function is nil")
		}
	}
}

// Visible reports whether a request may know of a topic. Pages of other topics are answered with
// 404. Other pages leave those topics out of lists and sums. Entries of the audit without a topic
// are left out too, because they can be about jobs of hidden topics.
func Visible(f func(r *http.Request, topic string) bool) Option {
	return func(o *options) {
		if o.visible = f; f == nil {
			o.refuse("Visible: the function is nil")
		}
	}
}

// A Link leads from a job to another page, for example to its logs.
type Link struct {
	Text string `json:"text"`
	URL  string `json:"url"` // with the scheme http or https, or relative to the page
}

// Links returns links for the page of a job, which has its payload and its output only if the
// request has [RightPayload]. The page shows the first 10. Links with another scheme than http,
// https or mailto are inert.
func Links(f func(j *delayq.JobInfo) []Link) Option {
	return func(o *options) {
		if o.links = f; f == nil {
			o.refuse("Links: the function is nil")
		}
	}
}

// Badge shows a word beside the prefix, for example "production", to tell pages apart. It has at
// most 40 bytes.
func Badge(text string) Option {
	return func(o *options) {
		if o.badge = text; len(text) > 40 || !utf8.ValidString(text) {
			o.refuse("Badge of %d bytes: must be UTF-8 of at most 40 bytes", len(text))
		}
	}
}

// Language sets the language of the page: "en" or "zh-CN". Without it, the browser decides. A
// person can choose the other one.
func Language(tag string) Option {
	return func(o *options) {
		if o.language = tag; catalogs[tag] == nil {
			o.refuse("Language(%q): must be one of %s", tag, strings.Join(languages, ", "))
		}
	}
}

// Every is the age at which what the page shows is read from Redis again, and how often an open
// page asks for it. All viewers share what was read, so that a hundred open pages cost Redis what
// one costs. Default: 2 s. Range: 500 ms to 1 h.
func Every(d time.Duration) Option {
	return func(o *options) {
		if o.every = d; d < 500*time.Millisecond || d > time.Hour {
			o.refuse("Every(%v): must be from 500ms to 1h", d)
		}
	}
}

// TrustedOrigin lets pages of another origin, such as "https://admin.example.com", send acts. It is
// needed behind a proxy that changes the Host header, if browsers do not send Sec-Fetch-Site.
func TrustedOrigin(origin string) Option {
	return func(o *options) { o.origins = append(o.origins, origin) }
}

// New returns the page of the queue that an inspector reads. It starts nothing. If the inspector or
// an option is invalid, New returns an error that wraps [delayq.ErrInvalid]. Call [Handler.Close]
// at the end.
func New(insp *delayq.Inspector, opts ...Option) (*Handler, error) {
	h := &Handler{insp: insp, o: options{every: 2 * time.Second}, cross: http.NewCrossOriginProtection()}
	if insp == nil {
		h.o.refuse("the inspector is nil")
	}
	for _, opt := range opts {
		if opt == nil {
			h.o.refuse("an option is nil")
			continue
		}
		opt(&h.o)
	}
	for _, origin := range h.o.origins {
		if err := h.cross.AddTrustedOrigin(origin); err != nil {
			h.o.refuse("TrustedOrigin: %w", err)
		}
	}
	if err := errors.Join(h.o.errs...); err != nil {
		return nil, fmt.Errorf("%w: %w", delayq.ErrInvalid, err)
	}
	h.shared.every = h.o.every
	h.runs.init()
	return h, nil
}

// Close stops the bulk runs that are under way and waits for them. What they have done until then
// is in the audit. A second call does nothing.
func (h *Handler) Close() { h.runs.close() }

// policy allows nothing but the page's own files: no inline script or style, and no other origin.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers a request. Only the last element of its path matters.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")

	if r.URL.Path == "" { // http.StripPrefix has left nothing
		outside, _, _ := strings.Cut(r.RequestURI, "?")
		head.Set("Location", "./"+path.Base(outside)+"/") // not http.Redirect, which would make it absolute
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if serveAsset(w, r, name) {
		return
	}
	v := h.newView(w, r)
	v.Page, v.json = strings.CutSuffix(name, ".json")
	if v.Page == "" && !v.json {
		v.Page = "topics"
	}
	h.answer(v)
}

// A route is a page or an act.
type route struct {
	right Right
	show  func(*Handler, *view) (any, error) // of GET: the data of the page
	post  func(*Handler, *view) (any, error) // of POST, if the page acts
	form  func(*Handler, *view) (any, error) // the data of the form that was sent, to show it again
	page  string                             // its template
	acts  bool                               // there is nothing without Actions
	plain bool                               // it is not refreshed
	topic bool                               // it needs the parameter topic
}

var routes map[string]*route

func init() {
	routes = map[string]*route{
		"topics":    {right: RightView, show: (*Handler).overview},
		"topic":     {right: RightView, show: (*Handler).topic, topic: true},
		"jobs":      {right: RightView, show: (*Handler).jobs, topic: true},
		"job":       {right: RightView, show: (*Handler).job, topic: true},
		"payload":   {right: RightPayload, show: (*Handler).payload, topic: true, plain: true},
		"find":      {right: RightView, show: (*Handler).find, plain: true},
		"failures":  {right: RightView, show: (*Handler).failures},
		"flow":      {right: RightView, show: (*Handler).flow, topic: true},
		"keys":      {right: RightView, show: (*Handler).keys, topic: true},
		"key":       {right: RightView, show: (*Handler).key, topic: true},
		"servers":   {right: RightView, show: (*Handler).servers},
		"schedules": {right: RightView, show: (*Handler).schedules},
		"schedule":  {right: RightView, show: (*Handler).schedule, topic: true},
		"audit":     {right: RightView, show: (*Handler).audit},
		"redis":     {right: RightView, show: (*Handler).redis},
		"help":      {right: RightView, show: (*Handler).help, plain: true},
	}
	addActRoutes(routes)
}

// answer finds the page, checks the request and writes the answer.
func (h *Handler) answer(v *view) {
	r := v.Request
	rt := routes[v.Page]
	if rt == nil || rt.acts && h.o.client == nil {
		if r.Method == http.MethodPost && h.o.client == nil {
			v.notAllowed()
			return
		}
		v.fail(errNoPage)
		return
	}
	v.route = rt
	do := rt.show
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if do = rt.post; h.o.client == nil {
			do = nil
		} else if err := h.cross.Check(r); err != nil {
			v.fail(&refusal{status: http.StatusForbidden, text: v.T("error.origin")})
			return
		}
	default:
		do = nil
	}
	if do == nil {
		v.notAllowed()
		return
	}
	if err := v.parse(); err != nil {
		v.fail(err)
		return
	}
	if rt.topic && v.Topic == "" {
		v.fail(&refusal{status: http.StatusBadRequest, text: v.T("error.topic")})
		return
	}
	if err := h.may(v, rt.right, v.Topic); err != nil {
		v.fail(err)
		return
	}
	data, err := do(h, v)
	if err != nil {
		if !v.again(err) {
			v.fail(err)
		}
		return
	}
	v.show(data)
}

// may returns an error unless the request has a right and may know of the topic.
func (h *Handler) may(v *view, right Right, topic string) error {
	if topic != "" && !h.sees(v, topic) {
		return errNoPage
	}
	if h.o.authorize != nil {
		for _, one := range slices.Compact([]Right{RightView, right}) {
			if err := h.o.authorize(v.Request, one, topic); err != nil {
				return &refusal{status: http.StatusForbidden, text: err.Error()}
			}
		}
	}
	return nil
}

// sees reports whether the request may know of a topic.
func (h *Handler) sees(v *view, topic string) bool {
	return h.o.visible == nil || h.o.visible(v.Request, topic)
}

// views reports whether the request may see a topic on a page about several. It asks once for each.
func (h *Handler) views(v *view, topic string) bool {
	known, asked := v.views[topic]
	if !asked {
		if v.views == nil {
			v.views = make(map[string]bool)
		}
		known = h.may(v, RightView, topic) == nil
		v.views[topic] = known
	}
	return known
}

// viewsAll reports whether the request may see all topics.
func (h *Handler) viewsAll(v *view) (bool, error) {
	if h.o.visible != nil {
		return false, nil // it can hide topics that do not exist any more
	}
	if h.o.authorize == nil {
		return true, nil
	}
	list, err := h.topicList(v.Request.Context())
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(list.rows, func(t topicRow) bool { return !h.views(v, t.Topic) }), nil
}

// opens reports whether the request may see payloads and headers of a topic, and search in them.
func (h *Handler) opens(v *view, topic string) bool {
	return h.may(v, RightPayload, topic) == nil && !h.o.rule(topic).redacted
}
