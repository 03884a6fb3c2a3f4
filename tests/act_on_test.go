package tests

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// An act on a job that was read changes it if it is still as it was read, and otherwise nothing:
// neither if it has left its state, nor if it has come back to it.
func TestActOnAJobThatWasRead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "alice")
		got := func(id string) *delayq.JobInfo {
			info, err := f.Client.Get(t.Context(), "topic", id)
			require.NoError(t, err)
			return info
		}
		enqueue := func(id string) {
			_, err := f.Client.Enqueue(t.Context(), "topic", id, nil, delayq.ProcessIn(time.Hour), delayq.Replace())
			require.NoError(t, err)
		}
		bury := func(id string) {
			enqueue(id)
			require.NoError(t, f.Client.Bury(t.Context(), "topic", id, "dead"))
		}
		revive := func(id string) { require.NoError(t, f.Client.Revive(t.Context(), "topic", id)) }
		move := func(id string) {
			require.NoError(t, f.Client.Reschedule(t.Context(), "topic", id, delayq.ProcessIn(2*time.Hour)))
		}
		again := func(id string) { // dead once more, at another time
			was := got(id).BuriedAt
			for revive(id); ; revive(id) { // until Redis's clock is at another millisecond
				require.NoError(t, f.Client.Bury(t.Context(), "topic", id, "dead"))
				if !got(id).BuriedAt.Equal(was) {
					return
				}
			}
		}
		nothing := func(string) {}
		for name, c := range map[string]struct {
			make, change func(id string)
			act          delayq.Action
			done         bool
			state        delayq.State // afterwards; empty: gone
		}{
			"delete dead":                {bury, nothing, delayq.Delete(), true, ""},
			"delete what was revived":    {bury, revive, delayq.Delete(), false, delayq.StateReady},
			"delete what died again":     {bury, again, delayq.Delete(), false, delayq.StateDead},
			"cancel dead":                {bury, nothing, delayq.Cancel(), true, ""},
			"cancel what was revived":    {bury, revive, delayq.Cancel(), false, delayq.StateReady},
			"revive dead":                {bury, nothing, delayq.Revive(), true, delayq.StateReady},
			"revive what died again":     {bury, again, delayq.Revive(), false, delayq.StateDead},
			"cancel scheduled":           {enqueue, nothing, delayq.Cancel(), true, ""},
			"cancel what was moved":      {enqueue, move, delayq.Cancel(), false, delayq.StateScheduled},
			"bury scheduled":             {enqueue, nothing, delayq.Bury("x"), true, delayq.StateDead},
			"bury what was moved":        {enqueue, move, delayq.Bury("x"), false, delayq.StateScheduled},
			"run scheduled":              {enqueue, nothing, delayq.RunNow(), true, delayq.StateReady},
			"run what was moved":         {enqueue, move, delayq.RunNow(), false, delayq.StateScheduled},
			"reschedule":                 {enqueue, nothing, delayq.Reschedule(delayq.ProcessIn(time.Minute)), true, delayq.StateScheduled},
			"reschedule what was moved":  {enqueue, move, delayq.Reschedule(delayq.ProcessIn(time.Minute)), false, delayq.StateScheduled},
			"reschedule, but what to":    {enqueue, nothing, delayq.Reschedule(delayq.ProcessAt(time.Unix(1<<40, 0))), false, delayq.StateScheduled},
			"cancel what does not exist": {enqueue, func(id string) { _, _ = f.Client.Dequeue(t.Context(), "topic", id) }, delayq.Cancel(), false, ""},
		} {
			c.make(name)
			info := got(name)
			c.change(name)
			before, _ := f.Client.Get(t.Context(), "topic", name)
			err := library.ActOn(ctx, f.Client, info, c.act)
			now, gone := f.Client.Get(t.Context(), "topic", name)
			audit, failed := f.Inspector.Audit(t.Context(), 1)
			require.NoError(t, failed)
			if c.state == "" {
				require.ErrorIs(t, gone, delayq.ErrNotFound, name)
			} else {
				require.NoError(t, gone, name)
				require.Equal(t, c.state, now.State, name)
			}
			if c.done {
				require.NoError(t, err, name)
				require.Equal(t, name, audit[0].ID)
				require.Equal(t, string(info.State), strings.SplitN(audit[0].Was, ",", 2)[0])
				if info.State == delayq.StateScheduled {
					require.Equal(t, "scheduled, due "+info.Due.UTC().Format(time.RFC3339Nano), audit[0].Was)
				}
				continue
			}
			require.Error(t, err, name)
			require.Equal(t, before, now, name)
			if len(audit) > 0 {
				require.NotEqual(t, name, audit[0].ID, "nothing was done")
			}
		}
	})
}
