package script

import (
	"fmt"
	"reflect"
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
// one cluster slot. Only this file spells keys. A new key is a new row. Its tag has the name that
// headers of scripts give it, its type, as TYPE returns it, and what precedes the name in Redis.
type Keys struct {
	Topic string
	Root  string // "<prefix>:{<topic>}:"

	Pool     string `redis:"pool,hash"`       // job ID → record of every unfinished job
	Bucket   string `redis:"bucket,zset"`     // job ID by due time
	Ready    string `redis:"ready,list"`      // job IDs, the next one at the head
	Handoff  string `redis:"handoff,list"`    // job IDs between a server's wait and its take
	Leases   string `redis:"leases,zset"`     // job ID by the end of its lease
	Attempts string `redis:"attempts,hash"`   // job ID → finished attempts
	Errors   string `redis:"errors,hash"`     // job ID → last errors
	Moved    string `redis:"moved,hash"`      // job ID → present due time, if not the record's
	Dead     string `redis:"dead,zset"`       // job ID by time of burial
	Done     string `redis:"done,zset"`       // job ID by the time until which it is kept
	Results  string `redis:"results,hash"`    // job ID → what is kept of it
	Meta     string `redis:"meta,hash"`       // settings of operators
	Stats    string `redis:"stats,hash"`      // counters
	Operator string `redis:"operator,none"`   // never exists: who has a right to it is an operator
	Sizes    string `redis:"sizes,hash"`      // the size of the largest record
	Idle     string `redis:"idle,zset"`       // server by the time at which it began to wait for jobs
	Keyed    string `redis:"keyed,hash"`      // job ID → place in its lane of every job that has a key
	Lane     string `redis:"lane,zset"`       // places of the waiting keyed jobs, with their IDs
	Turn     string `redis:"turn,zset"`       // key of waiting jobs by its pass
	Rules    string `redis:"rules,hash"`      // key → what is set for it
	Held     string `redis:"held,zset"`       // key by the end of its hold
	Minutes  string `redis:"minutes,hash"`    // minute modulo 360 → what happened in it
	Hours    string `redis:"hours,hash"`      // hour modulo 720 → what happened in it
	Parked   string `redis:"parked,zset"`     // key whose limits are reached by when it gets a turn
	Holders  string `redis:"holders,zset"`    // running jobs whose keys have a limit of running jobs
	Rates    string `redis:"rates,zset"`      // key by its tat
	Blockers string `redis:"blockers,zset"`   // places of jobs that their keys wait for, with their IDs
	Lags     string `redis:"lags,zset"`       // key that a limit has stopped by the pass that it had
	Tombs    string `redis:"tombs,zset,all:"` // closed job ID by when it is free again
	Next     string `redis:"next,hash,all:"`  // running job ID → the successor that it will have
	Notes    string `redis:"notes,hash,all:"` // who waits for jobs, how those ended, and what runs have noted

	Parcels     string `redis:"parcels,zset,all:"`     // what is on the way to other topics
	Plans       string `redis:"plans,hash,all:"`       // target → the plan by which its parcels are delivered
	Undelivered string `redis:"undelivered,list,all:"` // the last parcels that their targets have refused

	Flows string `redis:"flows,hash,all:"` // ID of a last step → how far its flow has come
	Steps string `redis:"steps,hash,all:"` // the steps of flows

	Parts   string `redis:"parts,hash,all:"`   // the map of the partitions of the topic
	Staying string `redis:"staying,zset,all:"` // key of a closed place by the pass that has found it last

	Schedules string `redis:"schedules,hash"` // name → definition of a schedule
	Slots     string `redis:"slots,zset"`     // schedule by its next slot
	Waiting   string `redis:"waiting,zset"`   // schedule by the slot that waits for its last run
	Fired     string `redis:"fired,hash"`     // schedule → state of its slots
	Runs      string `redis:"runs,hash"`      // schedule → history of its runs
}

// A keyField is a key of a topic: a row of Keys.
type keyField struct {
	name, kind string
	front      string // what precedes the name in Redis
	row        int    // the index of the field
}

// keyFields lists the keys of a topic. The first one is the receipt, which the caller of a script
// names.
var keyFields = func() []keyField {
	list := []keyField{keyReceipt: {name: "receipt"}}
	for _, row := range reflect.VisibleFields(reflect.TypeFor[Keys]()) {
		if name, kind, ok := strings.Cut(row.Tag.Get("redis"), ","); ok {
			kind, front, _ := strings.Cut(kind, ",")
			list = append(list, keyField{name, kind, front, row.Index[0]})
		}
	}
	return list
}()

const keyReceipt = 0 // the index of receipt in keyFields

// keyNamed returns the index of a name in keyFields. Keys of a whole prefix have none: the callers
// of such scripts name them.
func keyNamed(name string) int {
	return slices.IndexFunc(keyFields, func(f keyField) bool { return f.name == name })
}

func NewKeys(prefix, topic string) *Keys {
	k := &Keys{Topic: topic, Root: prefix + ":{" + topic + "}:"}
	rows := reflect.ValueOf(k).Elem()
	for _, f := range keyFields[keyReceipt+1:] {
		rows.Field(f.row).SetString(k.Root + f.front + f.name)
	}
	return k
}

// Key returns the key that headers of scripts call by a name.
func (k *Keys) Key(name string) string {
	front := ""
	if i := keyNamed(name); i > keyReceipt {
		front = keyFields[i].front
	}
	return k.Root + front + name
}

// A KeyList is the keys of a script in a topic, for many calls with different receipts.
type KeyList struct {
	script  *Script
	topic   string
	keys    []any
	receipt int // the index of the receipt; -1: none
}

// List returns the KeyList of a script.
func (k *Keys) List(s *Script) *KeyList {
	return &KeyList{script: s, topic: k.Topic, keys: k.Of(s, ""), receipt: slices.Index(s.keys, keyReceipt)}
}

// Of lists the keys of a script.
func (k *Keys) Of(s *Script, receipt string) []any {
	list, rows := make([]any, len(s.keys)), reflect.ValueOf(k).Elem()
	for i, field := range s.keys {
		if field == keyReceipt {
			list[i] = receipt
		} else {
			list[i] = rows.Field(keyFields[field].row).String()
		}
	}
	return list
}

// Checked lists the keys that a check scans, in an order in which a finding in one key does not
// hide a finding in the next.
func (k *Keys) Checked() []string {
	return []string{
		k.Turn, k.Keyed, k.Lane, k.Pool, k.Bucket, k.Leases, k.Dead, k.Attempts, k.Errors, k.Moved, k.Done, k.Results,
		k.Schedules, k.Slots, k.Waiting, k.Fired, k.Runs, k.Rules, k.Held, k.Parked,
		k.Holders, k.Rates, k.Blockers, k.Next, k.Notes, k.Flows,
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
		name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(after, "all:"), "serve:"), ":")
	}
	if i := keyNamed(name); i > keyReceipt {
		return keyFields[i].kind
	}
	switch name {
	case "taken", "audit":
		return "list"
	case "topics":
		return "set"
	case "receipt":
		return "string"
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
