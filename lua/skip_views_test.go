package lua_test

import (
	"fmt"
	"time"

	"github.com/delayq/delayq"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// paging is a page of ten jobs of a walk that looks at a thousand entries. begins is how the IDs of
// the jobs begin that are wanted.
func paging(walk, begins string, set func(h *Hand, n int)) skipping {
	return skipping{
		set: func(h *Hand, n int) {
			set(h, n)
			h.Put("+0", "a")
			h.Put("+3600000", "a later")
		},
		call: func(h *Hand) (script.Reply, error) {
			from, to := "-inf", "+inf"
			if walk == "lanes" {
				from, to = "-", "+"
			}
			return h.Run(script.Page, walk, 0, 1000, 10, 1<<20, 1<<20, -1, from, to, begins, 0, 0, 0)
		},
		more: func(r script.Reply) bool { return r.Number(4) == 0 },
	}
}

// checking is a slice of a check, of a thousand entries of a key.
func checking(part string, set func(h *Hand, n int)) skipping {
	return skipping{
		set: set,
		call: func(h *Hand) (script.Reply, error) {
			return h.Run(script.Check, part, "0", 1000, 1<<20, 0)
		},
		more: func(r script.Reply) bool { return r.Text(2) != "0" },
	}
}

// scheduling is a call about the schedule s, beside n schedules whose slots are due or wait.
func scheduling(call func(h *Hand, c *delayq.Client) error) skipping {
	return skipping{
		set: func(h *Hand, n int) {
			h.endless(h.Keys.Slots, 1, named("due", n/2))
			h.endless(h.Keys.Waiting, 1, named("waits", n/2))
			h.Push(h.Keys.Ready, append(named("gone", n/2), "")...)
			require.NoError(h.T, h.schedules().Schedule(h.T.Context(), h.Keys.Topic, "s", delayq.Every(time.Hour), nil))
			_, err := h.schedules().Trigger(h.T.Context(), h.Keys.Topic, "s")
			require.NoError(h.T, err)
			h.Push(h.Keys.Ready, append(named("more", n/2), "")...)
		},
		call: func(h *Hand) (script.Reply, error) { return nil, call(h, h.schedules()) },
	}
}

func (h *Hand) schedules() *delayq.Client { return delayq.NewClient(h.RDB, delayq.Prefix(h.Prefix())) }

// firing is a call of schedule_due, with n schedules that cannot be fired.
func firing(place string, set func(h *Hand, names []string)) skipping {
	return skipping{
		set: func(h *Hand, n int) { set(h, named("schedule", n)) },
		call: func(h *Hand) (script.Reply, error) {
			return h.Run(script.ScheduleDue, place, 0, 250, 1<<20)
		},
		more: func(r script.Reply) bool { return r.Number(2) == 250 },
	}
}

// viewSkippings are the scripts that read what there is, or repair it, and those about schedules.
var viewSkippings = map[string]skipping{
	"page: ready IDs that are gone": paging("ready", "", func(h *Hand, n int) {
		h.Push(h.Keys.Ready, append(named("gone", n), "")...)
	}),
	"page: ready jobs with other IDs": paging("ready", "a", func(h *Hand, n int) { h.Put("+0", named("other", n)...) }),
	"page: later jobs with other IDs": paging("scheduled", "a", func(h *Hand, n int) { h.Put("+1000", named("other", n)...) }),
	"page: dead jobs that are gone":   paging("dead", "", func(h *Hand, n int) { h.endless(h.Keys.Dead, 1, named("gone", n)) }),
	"page: places of no job": paging("lanes", "", func(h *Hand, n int) {
		var places []string
		for i := range n {
			places = append(places, fmt.Sprintf("\x03key%011x%010x%08x12345678gone %05d", 1, i, uint32(1<<31), i))
		}
		h.endless(h.Keys.Lane, 0, places)
	}),
	"check: leases of no job":        checking("leases", func(h *Hand, n int) { h.endless(h.Keys.Leases, 9e12, named("gone", n)) }),
	"check: due times of no job":     checking("bucket", func(h *Hand, n int) { h.endless(h.Keys.Bucket, 9e12, named("gone", n)) }),
	"check: parked keys of no job":   checking("parked", func(h *Hand, n int) { h.endless(h.Keys.Parked, 9e12, named("gone", n)) }),
	"check: turns of no job":         checking("turn", func(h *Hand, n int) { h.endless(h.Keys.Turn, 1, named("gone", n)) }),
	"check: holders of dead runs":    checking("holders", func(h *Hand, n int) { h.endless(h.Keys.Holders, 0, named("\x03key0gone", n)) }),
	"check: slots of no schedule":    checking("slots", func(h *Hand, n int) { h.endless(h.Keys.Slots, 1, named("gone", n)) }),
	"check: ready IDs that are gone": checking("ready", func(h *Hand, n int) { h.Push(h.Keys.Ready, append(named("gone", n), "")...) }),
	"check: all": {
		set: func(h *Hand, n int) {
			h.Push(h.Keys.Ready, append(named("gone", n), "")...)
			h.endless(h.Keys.Leases, 9e12, named("gone", n))
			h.endless(h.Keys.Parked, 9e12, named("gone", n))
		},
		call: func(h *Hand) (script.Reply, error) { return h.Run(script.Check, "all", "0", 1000, 1<<20, 0) },
	},
	"mend: ready IDs that are gone": {
		set: func(h *Hand, n int) {
			h.Push(h.Keys.Ready, append(named("gone", n), "")...)
			h.Put("+0", "a")
			require.NoError(h.T, h.RDB.LRem(h.T.Context(), h.Keys.Ready, 0, "a").Err())
		},
		call: func(h *Hand) (script.Reply, error) {
			nonce := h.RDB.HGet(h.T.Context(), h.Keys.Pool, "a").Val()[:8]
			r, err := h.Run(script.Mend, 1, script.ControlChannel(h.Prefix()), h.Keys.Topic, "a", nonce, "", "", "1")
			require.Equal(h.T, "m", r.Text(2))
			return r, err
		},
	},
	"survey: jobs of all kinds that are gone": {
		set: func(h *Hand, n int) {
			h.Push(h.Keys.Ready, append(named("gone", n), "")...)
			h.endless(h.Keys.Dead, 9e12, named("gone", n))
			h.endless(h.Keys.Idle, 9e12, named("gone", n))
		},
		call: func(h *Hand) (script.Reply, error) { return h.marks(script.Survey, true, h.Keys) },
	},
	"schedule_due: due slots of no schedule": firing("slots", func(h *Hand, names []string) { h.endless(h.Keys.Slots, 1, names) }),
	"schedule_due: slots that wait": firing("waiting", func(h *Hand, names []string) {
		h.endless(h.Keys.Waiting, 1, names)
		h.Put("+3600000", "job")
		for _, name := range names {
			require.NoError(h.T, h.RDB.HSet(h.T.Context(), h.Keys.Fired, name, `{"job":"job"}`).Err())
		}
	}),
	"schedule_fire: a last job among ready ones": {
		set: func(h *Hand, n int) {
			h.endless(h.Keys.Slots, 1, named("due", n))
			h.Push(h.Keys.Ready, append(named("gone", n/2), "")...)
			h.Put("+0", "last")
			h.Push(h.Keys.Ready, append(named("more", n/2), "")...)
			h.endless(h.Keys.Slots, 5, []string{"s"})
			require.NoError(h.T, h.RDB.HSet(h.T.Context(), h.Keys.Fired, "s", `{"nonce":"6162636465666768","job":"last","fired":0,"skipped":0,"missed":0,"from":0}`).Err())
		},
		call: func(h *Hand) (script.Reply, error) {
			head, tail := h.Record("+0", 0)
			r, err := h.Run(script.ScheduleFire, script.ControlChannel(h.Prefix()), h.Keys.Topic,
				10, 1<<20, 3, 1000, 0,
				"s", "6162636465666768", "slots", "5", "cancel", 0, 0, 0, "9000000000000", "", "", 1, 5, head[:8], head, tail, 5)
			require.Equal(h.T, "f", r.Text(2))
			return r, err
		},
	},
	"schedule_set": scheduling(func(h *Hand, c *delayq.Client) error {
		return c.Schedule(h.T.Context(), h.Keys.Topic, "s", delayq.Every(time.Minute), nil)
	}),
	"schedule_pause": scheduling(func(h *Hand, c *delayq.Client) error {
		return c.PauseSchedule(h.T.Context(), h.Keys.Topic, "s")
	}),
	"schedule_trigger": scheduling(func(h *Hand, c *delayq.Client) error {
		_, err := c.Trigger(h.T.Context(), h.Keys.Topic, "s")
		return err
	}),
	"schedule_remove": scheduling(func(h *Hand, c *delayq.Client) error {
		return c.Unschedule(h.T.Context(), h.Keys.Topic, "s")
	}),
	"schedule_info": scheduling(func(h *Hand, _ *delayq.Client) error {
		_, err := delayq.NewInspector(h.RDB, delayq.Prefix(h.Prefix())).Schedule(h.T.Context(), h.Keys.Topic, "s")
		return err
	}),
}
