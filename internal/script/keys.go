package script

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/delayq/delayq/internal/record"
)

// Bounds of what a caller names and stores.
const (
	MaxTopicLen  = record.MaxName // bytes of a topic or a prefix
	MaxIDLen     = record.MaxID   // bytes of a job ID
	MaxHeaderLen = record.MaxHeaders
)

const DefaultPrefix = "delayq"

// Keys holds the names of all keys of one topic. They share the hash tag {topic}, so one topic is
// one cluster slot. Only this file spells keys.
type Keys struct {
	Topic    string
	Root     string // "<prefix>:{<topic>}:"
	Pool     string // hash: job ID → record of every unfinished job
	Bucket   string // zset: job ID by due time
	Ready    string // list: job IDs, the next one at the head
	Handoff  string // list: job IDs between a server's wait and its take
	Leases   string // zset: job ID by the end of its lease
	Attempts string // hash: job ID → finished attempts
	Errors   string // hash: job ID → last errors
	Moved    string // hash: job ID → present due time, if it differs from the record's
	Dead     string // zset: job ID by time of burial
	Done     string // zset: job ID by the time until which it is kept
	Results  string // hash: job ID → what is kept of it
	Meta     string // hash: settings of operators
	Stats    string // hash: counters
	operator string // never exists: the right to it is the right to make operator calls
	Sizes    string // hash: the size of the largest record
	Idle     string // zset: server by the time at which it began to wait for jobs
	Keyed    string // hash: job ID → place in its lane of every job that has a key
	Lane     string // zset: places of the waiting keyed jobs, with their IDs
	Turn     string // zset: key of waiting jobs by its pass
	Rules    string // hash: key → what is set for it
	Held     string // zset: key by the end of its hold
	Minutes  string // hash: minute modulo 360 → what happened in it
	Hours    string // hash: hour modulo 720 → what happened in it
	Parked   string // zset: key whose limits are reached by when it gets a turn
	Holders  string // zset: running jobs whose keys have a limit of running jobs
	Rates    string // zset: key by its tat
	Blockers string // zset: places of jobs that their keys wait for, with their IDs

	Schedules string // hash: name → definition of a schedule
	Slots     string // zset: schedule by its next slot
	Waiting   string // zset: schedule by the slot that waits for the end of the last run
	Fired     string // hash: schedule → state of its slots
	Runs      string // hash: schedule → history of its runs
}

func NewKeys(prefix, topic string) *Keys {
	root := prefix + ":{" + topic + "}:"
	return &Keys{
		Topic:    topic,
		Root:     root,
		Pool:     root + "pool",
		Bucket:   root + "bucket",
		Ready:    root + "ready",
		Handoff:  root + "handoff",
		Leases:   root + "leases",
		Attempts: root + "attempts",
		Errors:   root + "errors",
		Moved:    root + "moved",
		Dead:     root + "dead",
		Done:     root + "done",
		Results:  root + "results",
		Meta:     root + "meta",
		Stats:    root + "stats",
		operator: root + "operator",
		Sizes:    root + "sizes",
		Idle:     root + "idle",
		Keyed:    root + "keyed",
		Lane:     root + "lane",
		Turn:     root + "turn",
		Rules:    root + "rules",
		Held:     root + "held",
		Minutes:  root + "minutes",
		Hours:    root + "hours",
		Parked:   root + "parked",
		Holders:  root + "holders",
		Rates:    root + "rates",
		Blockers: root + "blockers",

		Schedules: root + "schedules",
		Slots:     root + "slots",
		Waiting:   root + "waiting",
		Fired:     root + "fired",
		Runs:      root + "runs",
	}
}

// Checked lists the keys that a check scans, in an order in which a finding in one key does not
// hide a finding in the next.
func (k *Keys) Checked() []string {
	return []string{
		k.Turn, k.Keyed, k.Lane, k.Pool, k.Bucket, k.Leases, k.Dead, k.Attempts, k.Errors, k.Moved, k.Done, k.Results,
		k.Schedules, k.Slots, k.Waiting, k.Fired, k.Runs, k.Rules, k.Held, k.Parked,
		k.Holders, k.Rates, k.Blockers,
	}
}

// Prefix returns the first part of all keys.
func (k *Keys) Prefix() string { return k.Root[:len(k.Root)-len(":{"+k.Topic+"}:")] }

// Name returns the name of a key of the topic in the protocol.
func (k *Keys) Name(key string) string { return strings.TrimPrefix(key, k.Root) }

// TypeOf returns the type that a key of a topic or of a prefix must have, as TYPE returns it.
func TypeOf(key string) string {
	name := key[strings.LastIndexByte(key, ':')+1:]
	if _, after, ok := strings.Cut(key, "}:"); ok {
		name, _, _ = strings.Cut(after, ":")
	}
	switch name {
	case "ready", "handoff", "taken", "audit":
		return "list"
	case "bucket", "leases", "dead", "done", "slots", "waiting", "idle", "lane", "turn", "held",
		"parked", "holders", "rates", "blockers":
		return "zset"
	case "topics":
		return "set"
	case "receipt":
		return "string"
	case "operator":
		return "none"
	}
	return "hash"
}

// Shift returns the key that records that a server has recently checked the topic, for a reason, or
// what it found.
func (k *Keys) Shift(reason string) string { return k.Receipt(reason) }

// Receipt returns the key of the reply to the last numbered call of a series.
func (k *Keys) Receipt(series string) string { return k.Root + "receipt:" + series }

// Taken returns the key of the IDs of a server's last take.
func (k *Keys) Taken(server string) string { return k.Root + "taken:" + server }

// Keys and channels of a prefix as a whole.
func TopicsKey(prefix string) string      { return prefix + ":topics" }
func ServersKey(prefix string) string     { return prefix + ":servers" }
func AuditKey(prefix string) string       { return prefix + ":audit" }
func ControlChannel(prefix string) string { return prefix + ":control" }

// CheckName returns an error if a topic or a prefix is invalid.
func CheckName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("empty %s", what)
	case len(name) > MaxTopicLen:
		return fmt.Errorf("%s of %d bytes, at most %d are allowed", what, len(name), MaxTopicLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s %q is not valid UTF-8", what, name)
	}
	if at := strings.IndexFunc(name, func(r rune) bool {
		return strings.ContainsRune("{}#*", r) || unicode.IsControl(r)
	}); at >= 0 {
		return fmt.Errorf("%s %q has %q at byte %d; {, }, #, * and control characters are not allowed",
			what, name, name[at], at)
	}
	return nil
}

func CheckID(id string) error {
	if len(id) > MaxIDLen {
		return fmt.Errorf("ID of %d bytes, at most %d are allowed", len(id), MaxIDLen)
	}
	return nil
}

// A keyField is a key of a topic, with the name it has in the headers of the scripts.
type keyField struct {
	name string
	of   func(*Keys) *string
}

var keyFields = []keyField{
	{"receipt", nil}, // the caller's
	{"pool", func(k *Keys) *string { return &k.Pool }},
	{"bucket", func(k *Keys) *string { return &k.Bucket }},
	{"ready", func(k *Keys) *string { return &k.Ready }},
	{"handoff", func(k *Keys) *string { return &k.Handoff }},
	{"leases", func(k *Keys) *string { return &k.Leases }},
	{"attempts", func(k *Keys) *string { return &k.Attempts }},
	{"errors", func(k *Keys) *string { return &k.Errors }},
	{"moved", func(k *Keys) *string { return &k.Moved }},
	{"dead", func(k *Keys) *string { return &k.Dead }},
	{"done", func(k *Keys) *string { return &k.Done }},
	{"results", func(k *Keys) *string { return &k.Results }},
	{"meta", func(k *Keys) *string { return &k.Meta }},
	{"stats", func(k *Keys) *string { return &k.Stats }},
	{"operator", func(k *Keys) *string { return &k.operator }},
	{"sizes", func(k *Keys) *string { return &k.Sizes }},
	{"idle", func(k *Keys) *string { return &k.Idle }},
	{"keyed", func(k *Keys) *string { return &k.Keyed }},
	{"lane", func(k *Keys) *string { return &k.Lane }},
	{"turn", func(k *Keys) *string { return &k.Turn }},
	{"rules", func(k *Keys) *string { return &k.Rules }},
	{"held", func(k *Keys) *string { return &k.Held }},
	{"minutes", func(k *Keys) *string { return &k.Minutes }},
	{"hours", func(k *Keys) *string { return &k.Hours }},
	{"parked", func(k *Keys) *string { return &k.Parked }},
	{"holders", func(k *Keys) *string { return &k.Holders }},
	{"rates", func(k *Keys) *string { return &k.Rates }},
	{"blockers", func(k *Keys) *string { return &k.Blockers }},
	{"schedules", func(k *Keys) *string { return &k.Schedules }},
	{"slots", func(k *Keys) *string { return &k.Slots }},
	{"waiting", func(k *Keys) *string { return &k.Waiting }},
	{"fired", func(k *Keys) *string { return &k.Fired }},
	{"runs", func(k *Keys) *string { return &k.Runs }},
}

const keyReceipt = 0 // the index of receipt in keyFields

// keyNamed returns the index of a name in keyFields. Keys of a whole prefix have none: the callers
// of such scripts name them.
func keyNamed(name string) int {
	return slices.IndexFunc(keyFields, func(f keyField) bool { return f.name == name })
}

// Of lists the keys of a script.
func (k *Keys) Of(s *Script, receipt string) []any {
	list := make([]any, len(s.keys))
	for i, field := range s.keys {
		if field == keyReceipt {
			list[i] = receipt
		} else {
			list[i] = *keyFields[field].of(k)
		}
	}
	return list
}
