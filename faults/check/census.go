package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxReceipt is the longest time a receipt may be kept, maxRows that for one of an outbox or of
// parcels, maxClean that for the note of good health of a check, and the others those for the two
// keys of a history.
const (
	maxReceipt = 3 * time.Minute
	maxRows    = 7 * 24 * time.Hour
	maxClean   = time.Hour
	maxMinutes = 7 * time.Hour
	maxHours   = 31 * 24 * time.Hour
)

// Census checks the form of a state (invariant I12), whether or not there still are jobs: every
// record is in exactly one structure, and what is noted of a job belongs to one.
//
// An ID in ready or handoff that has no record, stands there twice or whose job is elsewhere is a
// left-over, which the next take drops: these are allowed and counted.
func Census(s *State) (violations []Violation, leftovers int) {
	bad := func(topic, id, format string, args ...any) {
		violations = append(violations, Violation{Rule: "I12", Topic: topic, ID: id, Text: fmt.Sprintf(format, args...)})
	}
	for name, t := range s.Topics {
		for part, kind := range t.Types {
			if kind != types[part] {
				bad(name, "", "key %s is a %s and not a %s", part, kind, types[part])
			}
		}
		for part, k := range t.Keys {
			most, history := maxReceipt, false
			switch {
			case part == "receipt:clean":
				most = maxClean
			case strings.HasPrefix(part, "receipt:outbox."), strings.HasPrefix(part, "receipt:~"):
				most = maxRows
			case part == "minutes":
				most, history = maxMinutes, true
			case part == "hours":
				most, history = maxHours, true
			}
			switch {
			case history && k.Type != "hash":
				bad(name, "", "key %s is a %s and not a hash", part, k.Type)
			case !history && !strings.HasPrefix(part, "receipt:") && !strings.HasPrefix(part, "taken:"):
				bad(name, "", "undocumented key %s", part)
			case k.TTL < 0 || k.TTL > most:
				bad(name, "", "key %s is kept for %v", part, k.TTL)
			}
		}
		waiting := map[string]bool{}
		for _, id := range slices.Concat(t.Ready, t.Handoff) {
			_, record := t.Pool[id]
			if !record || waiting[id] || len(t.fixed(id)) > 0 {
				leftovers++
			}
			waiting[id] = true
		}
		for id := range t.Pool {
			places := t.fixed(id)
			if len(places) == 0 && !waiting[id] {
				bad(name, id, "record without a place")
			}
			if len(places) > 1 {
				bad(name, id, "record in %s", strings.Join(places, " and "))
			}
		}
		for part, set := range map[string]map[string]float64{"bucket": t.Bucket, "leases": t.Leases, "dead": t.Dead} {
			for id := range set {
				if _, ok := t.Pool[id]; !ok {
					bad(name, id, "in %s without a record", part)
				}
			}
		}
		for _, part := range []string{"attempts", "errors", "moved"} {
			for id := range t.Hashes[part] {
				if _, ok := t.Pool[id]; !ok {
					bad(name, id, "in %s without a record", part)
				}
			}
		}
		t.notes(func(id, format string, args ...any) { bad(name, id, format, args...) })
		t.lanes(func(id, format string, args ...any) { bad(name, id, format, args...) })
		t.schedules(func(schedule, format string, args ...any) { bad(name, schedule, format, args...) })
		for id := range t.Done {
			if _, ok := t.Hashes["results"][id]; !ok {
				bad(name, id, "in done without a result")
			}
		}
		for id := range t.Hashes["results"] {
			if _, ok := t.Done[id]; !ok {
				bad(name, id, "result that is not in done")
			}
		}
	}
	for name, k := range s.Other {
		want, ok := map[string]string{"topics": "set", "servers": "hash"}[name]
		if !ok || k.Type != want {
			bad("", "", "undocumented key %s, a %s", name, k.Type)
		}
	}
	return violations, leftovers
}

// lanes checks that lane has the place of each of its jobs once, and of no others, and that each of
// their keys has a turn.
func (t *Topic) lanes(bad func(id, format string, args ...any)) {
	for id, places := range t.Lane {
		if _, ok := t.Pool[id]; !ok {
			bad(id, "in lane without a record")
			continue
		}
		if len(places) > 1 || places[0] != t.Hashes["keyed"][id] {
			bad(id, "lane has the places %q, and keyed has %q", places, t.Hashes["keyed"][id])
		}
		if key := keyOf(places[0]); key != "" {
			_, turns := t.Turn[key]
			_, held := t.Held[key]
			if _, parked := t.Parked[key]; !turns && !held && !parked {
				bad(id, "key %q has jobs in lane and no turn", key)
			}
		}
	}
	for id, place := range t.Blocks {
		_, waits := t.Bucket[id]
		_, dead := t.Dead[id]
		if !waits && !dead || place != t.Hashes["keyed"][id] {
			bad(id, "in blockers with the place %q, and keyed has %q", place, t.Hashes["keyed"][id])
		}
	}
	for id, place := range t.Hashes["keyed"] {
		record := t.Pool[id]
		if len(record) < nonceLen || len(place) < nonceLen || place[len(place)-nonceLen:] != record[:nonceLen] {
			bad(id, "in keyed with the place %q, which is not of its record", place)
		}
	}
}

// nonceLen is the length of what a record begins with, and a place ends with.
const nonceLen = 8

// schedules checks that every schedule has a definition, a state and a history, and one place, or
// none while it is paused or after its end.
func (t *Topic) schedules(bad func(schedule, format string, args ...any)) {
	names := map[string]bool{}
	for _, part := range []string{"schedules", "fired", "runs"} {
		for name := range t.Hashes[part] {
			names[name] = true
		}
	}
	for _, zset := range []map[string]float64{t.Slots, t.Waiting} {
		for name := range zset {
			names[name] = true
		}
	}
	for name := range names {
		for _, part := range []string{"schedules", "fired", "runs"} {
			if _, ok := t.Hashes[part][name]; !ok {
				bad(name, "schedule without an entry in %s", part)
			}
		}
		var state struct {
			Paused int64 `json:"paused"`
			Ended  bool  `json:"ended"`
		}
		if text, ok := t.Hashes["fired"][name]; ok {
			if err := json.Unmarshal([]byte(text), &state); err != nil {
				bad(name, "state of a schedule: %v", err)
			}
		}
		_, slot := t.Slots[name]
		_, waits := t.Waiting[name]
		switch idle := state.Paused != 0 || state.Ended; {
		case slot && waits:
			bad(name, "schedule in slots and waiting")
		case idle && (slot || waits):
			bad(name, "schedule that is paused or has ended, and has a slot")
		case !idle && !slot && !waits:
			bad(name, "schedule without a slot")
		}
	}
}

// fixed tells in which of the structures a job is where its ID stands at most once.
func (t *Topic) fixed(id string) (places []string) {
	if _, ok := t.Bucket[id]; ok {
		places = append(places, "bucket")
	}
	if _, ok := t.Leases[id]; ok {
		places = append(places, "leases")
	}
	if len(t.Lane[id]) > 0 {
		places = append(places, "lane")
	}
	if _, ok := t.Dead[id]; ok {
		places = append(places, "dead")
	}
	return places
}

// Empty checks that nothing is left but the dead and what is documented to stay: stats, the names
// of topics and servers, receipts. Schedules must have been removed.
func Empty(s *State) (violations []Violation) {
	for name, t := range s.Topics {
		for _, part := range []string{"schedules", "slots", "waiting", "fired", "runs"} {
			if n := len(t.Hashes[part]) + len(map[string]map[string]float64{"slots": t.Slots, "waiting": t.Waiting}[part]); n > 0 {
				violations = append(violations, Violation{Rule: "I12", Topic: name, Text: fmt.Sprintf("%d schedules left in %s", n, part)})
			}
		}
		for id := range t.Pool {
			if _, dead := t.Dead[id]; !dead {
				violations = append(violations, Violation{Rule: "I11", Topic: name, ID: id, Text: "left over at the end, in " + t.where(id)})
			}
		}
		if n := len(t.Ready) + len(t.Handoff); n > 0 {
			violations = append(violations, Violation{Rule: "I12", Topic: name, Text: fmt.Sprintf("%d IDs left in ready and handoff", n)})
		}
		if n := len(t.Lane); n > 0 {
			violations = append(violations, Violation{Rule: "I12", Topic: name, Text: fmt.Sprintf("%d jobs left in lane", n)})
		}
		if n := len(t.Parcels); n > 0 {
			violations = append(violations, Violation{Rule: "I11", Topic: name, Text: fmt.Sprintf("%d parcels left", n)})
		}
		for target := range t.Hashes["all:plans"] {
			if target != "#" && target != "##" {
				violations = append(violations, Violation{Rule: "I12", Topic: name, Text: fmt.Sprintf("the plan of parcels for %q is left", target)})
			}
		}
		if len(t.Leases) > 0 || t.Types["leases"] != "" {
			violations = append(violations, Violation{Rule: "I12", Topic: name, Text: fmt.Sprintf("%d leases left, key %q", len(t.Leases), t.Types["leases"])})
		}
	}
	return violations
}

// where tells all places of a job.
func (t *Topic) where(id string) string {
	places := t.fixed(id)
	if slices.Contains(t.Ready, id) {
		places = append(places, "ready")
	}
	if slices.Contains(t.Handoff, id) {
		places = append(places, "handoff")
	}
	if len(places) == 0 {
		return "no structure"
	}
	return strings.Join(places, " and ")
}
