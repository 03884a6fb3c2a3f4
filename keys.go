package delayq

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
	maxTopicLen  = record.MaxName // bytes of a topic or a prefix
	maxIDLen     = record.MaxID   // bytes of a job ID
	maxHeaderLen = record.MaxHeaders
)

const defaultPrefix = "delayq"

// keys holds the names of all keys of one topic. They share the hash tag {topic}, so one topic is
// one cluster slot. Only this file spells keys.
type keys struct {
	topic    string
	root     string // "<prefix>:{<topic>}:"
	pool     string // hash: job ID → record of every unfinished job
	bucket   string // zset: job ID by due time
	ready    string // list: job IDs, the next one at the head
	handoff  string // list: job IDs between a server's wait and its take
	leases   string // zset: job ID by the end of its lease
	attempts string // hash: job ID → finished attempts
	errors   string // hash: job ID → last errors
	moved    string // hash: job ID → present due time, if it differs from the record's
	dead     string // zset: job ID by time of burial
	done     string // zset: job ID by the time until which it is kept
	results  string // hash: job ID → what is kept of it
	meta     string // hash: settings of operators
	stats    string // hash: counters
	operator string // never exists: the right to it is the right to make operator calls
	sizes    string // hash: the size of the largest record
	idle     string // zset: server by the time at which it began to wait for jobs
	keyed    string // hash: job ID → place in its lane of every job that has a key
	lane     string // zset: places of the waiting keyed jobs, with their IDs
	turn     string // zset: key of waiting jobs by its pass
	rules    string // hash: key → what is set for it
	held     string // zset: key by the end of its hold
	minutes  string // hash: minute modulo 360 → what happened in it
	hours    string // hash: hour modulo 720 → what happened in it
	parked   string // zset: key whose limits are reached by when it gets a turn
	holders  string // zset: running jobs whose keys have a limit of running jobs
	rates    string // zset: key by its tat
	blockers string // zset: places of jobs that their keys wait for, with their IDs

	schedules string // hash: name → definition of a schedule
	slots     string // zset: schedule by its next slot
	waiting   string // zset: schedule by the slot that waits for the end of the last run
	fired     string // hash: schedule → state of its slots
	runs      string // hash: schedule → history of its runs
}

func newKeys(prefix, topic string) *keys {
	root := prefix + ":{" + topic + "}:"
	return &keys{
		topic:    topic,
		root:     root,
		pool:     root + "pool",
		bucket:   root + "bucket",
		ready:    root + "ready",
		handoff:  root + "handoff",
		leases:   root + "leases",
		attempts: root + "attempts",
		errors:   root + "errors",
		moved:    root + "moved",
		dead:     root + "dead",
		done:     root + "done",
		results:  root + "results",
		meta:     root + "meta",
		stats:    root + "stats",
		operator: root + "operator",
		sizes:    root + "sizes",
		idle:     root + "idle",
		keyed:    root + "keyed",
		lane:     root + "lane",
		turn:     root + "turn",
		rules:    root + "rules",
		held:     root + "held",
		minutes:  root + "minutes",
		hours:    root + "hours",
		parked:   root + "parked",
		holders:  root + "holders",
		rates:    root + "rates",
		blockers: root + "blockers",

		schedules: root + "schedules",
		slots:     root + "slots",
		waiting:   root + "waiting",
		fired:     root + "fired",
		runs:      root + "runs",
	}
}

// checked lists the keys that a check scans, in an order in which a finding in one key does not
// hide a finding in the next.
func (k *keys) checked() []string {
	return []string{
		k.turn, k.keyed, k.lane, k.pool, k.bucket, k.leases, k.dead, k.attempts, k.errors, k.moved, k.done, k.results,
		k.schedules, k.slots, k.waiting, k.fired, k.runs, k.rules, k.held, k.parked,
		k.holders, k.rates, k.blockers,
	}
}

// prefix returns the first part of all keys.
func (k *keys) prefix() string { return k.root[:len(k.root)-len(":{"+k.topic+"}:")] }

// name returns the name of a key of the topic in the protocol.
func (k *keys) name(key string) string { return strings.TrimPrefix(key, k.root) }

// typeOf returns the type that a key of a topic or of a prefix must have, as TYPE returns it.
func typeOf(key string) string {
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

// shift returns the key that records that a server has recently checked the topic, for a reason, or
// what it found.
func (k *keys) shift(reason string) string { return k.receipt(reason) }

// receipt returns the key of the reply to the last numbered call of a series.
func (k *keys) receipt(series string) string { return k.root + "receipt:" + series }

// taken returns the key of the IDs of a server's last take.
func (k *keys) taken(server string) string { return k.root + "taken:" + server }

// Keys and channels of a prefix as a whole.
func topicsKey(prefix string) string      { return prefix + ":topics" }
func serversKey(prefix string) string     { return prefix + ":servers" }
func auditKey(prefix string) string       { return prefix + ":audit" }
func controlChannel(prefix string) string { return prefix + ":control" }

// checkName returns an error if a topic or a prefix is invalid.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("empty %s", what)
	case len(name) > maxTopicLen:
		return fmt.Errorf("%s of %d bytes, at most %d are allowed", what, len(name), maxTopicLen)
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

func checkID(id string) error {
	if len(id) > maxIDLen {
		return fmt.Errorf("ID of %d bytes, at most %d are allowed", len(id), maxIDLen)
	}
	return nil
}

// A keyField is a key of a topic, with the name it has in the headers of the scripts.
type keyField struct {
	name string
	of   func(*keys) *string
}

var keyFields = []keyField{
	{"receipt", nil}, // the caller's
	{"pool", func(k *keys) *string { return &k.pool }},
	{"bucket", func(k *keys) *string { return &k.bucket }},
	{"ready", func(k *keys) *string { return &k.ready }},
	{"handoff", func(k *keys) *string { return &k.handoff }},
	{"leases", func(k *keys) *string { return &k.leases }},
	{"attempts", func(k *keys) *string { return &k.attempts }},
	{"errors", func(k *keys) *string { return &k.errors }},
	{"moved", func(k *keys) *string { return &k.moved }},
	{"dead", func(k *keys) *string { return &k.dead }},
	{"done", func(k *keys) *string { return &k.done }},
	{"results", func(k *keys) *string { return &k.results }},
	{"meta", func(k *keys) *string { return &k.meta }},
	{"stats", func(k *keys) *string { return &k.stats }},
	{"operator", func(k *keys) *string { return &k.operator }},
	{"sizes", func(k *keys) *string { return &k.sizes }},
	{"idle", func(k *keys) *string { return &k.idle }},
	{"keyed", func(k *keys) *string { return &k.keyed }},
	{"lane", func(k *keys) *string { return &k.lane }},
	{"turn", func(k *keys) *string { return &k.turn }},
	{"rules", func(k *keys) *string { return &k.rules }},
	{"held", func(k *keys) *string { return &k.held }},
	{"minutes", func(k *keys) *string { return &k.minutes }},
	{"hours", func(k *keys) *string { return &k.hours }},
	{"parked", func(k *keys) *string { return &k.parked }},
	{"holders", func(k *keys) *string { return &k.holders }},
	{"rates", func(k *keys) *string { return &k.rates }},
	{"blockers", func(k *keys) *string { return &k.blockers }},
	{"schedules", func(k *keys) *string { return &k.schedules }},
	{"slots", func(k *keys) *string { return &k.slots }},
	{"waiting", func(k *keys) *string { return &k.waiting }},
	{"fired", func(k *keys) *string { return &k.fired }},
	{"runs", func(k *keys) *string { return &k.runs }},
}

const keyReceipt = 0 // the index of receipt in keyFields

// keyNamed returns the index of a name in keyFields. Keys of a whole prefix have none: the callers
// of such scripts name them.
func keyNamed(name string) int {
	return slices.IndexFunc(keyFields, func(f keyField) bool { return f.name == name })
}

// of lists the keys of a script.
func (k *keys) of(s *script, receipt string) []any {
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
