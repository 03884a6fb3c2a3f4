package lua_test

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// lastRights are the users of the last release, and its version.
func lastRights(t *testing.T) (version string, list []user) {
	t.Helper()
	files, err := filepath.Glob(redistest.Path("lua/testdata/acl/v*.acl"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(filepath.Base(file), ".acl")
	}
	version = slices.MaxFunc(names, compareVersions)
	return version, usersOf(t, redistest.File(t, "lua/testdata/acl/"+version+".acl"))
}

// compareVersions compares versions such as v0.10.0.
func compareVersions(a, b string) int {
	numbers := func(version string) (n [3]int) {
		_, _ = fmt.Sscanf(version, "v%d.%d.%d", &n[0], &n[1], &n[2])
		return n
	}
	x, y := numbers(a), numbers(b)
	return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]), cmp.Compare(x[2], y[2]))
}

// A newRight is a row of the table in docs/releases.md.
type newRight struct {
	release, role, right string
	refused              []string // calls
}

var (
	newRightRow = regexp.MustCompile("(?m)^\\| (v\\d+\\.\\d+\\.\\d+) \\| (\\w+) \\| `([^`]+)` \\| (.*) \\|$")
	quotedName  = regexp.MustCompile("`([^`]+)`")
)

// newRights reads the rows of the table that are later than a release, by role.
func newRights(text, since string) map[string][]newRight {
	rows := map[string][]newRight{}
	for _, m := range newRightRow.FindAllStringSubmatch(text, -1) {
		if compareVersions(m[1], since) <= 0 {
			continue
		}
		row := newRight{release: m[1], role: m[2], right: m[3]}
		for _, name := range quotedName.FindAllStringSubmatch(m[4], -1) {
			row.refused = append(row.refused, name[1])
		}
		rows[row.role] = append(rows[row.role], row)
	}
	return rows
}

// lacking are the rights that a user has and an earlier one of its role has not.
func lacking(u, old user) []string {
	had := old.rights()
	return slices.DeleteFunc(u.rights(), func(right string) bool { return slices.Contains(had, right) })
}

// refusedTo makes each call that the table of roles gives to a user's role, and returns those in
// which Redis has refused something. A server's calls are made one by one.
func refusedTo(t *testing.T, u user) (calls []string) {
	t.Helper()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	u.set(t, admin)
	rdb := queuetest.ACLClient(t, rs, u.role)
	roles := table(t)
	for i, d := range slices.Concat(chores, deeds) {
		if !slices.Contains(roles[d.call], u.role) || d.call == "Run" && i >= len(chores) {
			continue
		}
		stageFor(t, admin, script.DefaultPrefix, "topic", d.stage)
		_ = d.play(t, rdb, script.DefaultPrefix, "topic")
		denied, err := admin.ACLLog(t.Context(), 100).Result()
		require.NoError(t, err)
		optional := func(entry *redis.ACLLogEntry) bool { return redistest.Optional(entry.Object) }
		if !slices.Contains(calls, d.call) && len(slices.DeleteFunc(denied, optional)) > 0 {
			calls = append(calls, d.call)
		}
	}
	slices.Sort(calls)
	return calls
}

// Under the ACL file of the last release, Redis refuses to today's library what the table in
// docs/releases.md says, and nothing else. Where a user's rights are the same,
// TestACLGrantsWhatIsNeededAndNoMore has made the calls with them.
func TestRightsOfTheLastRelease(t *testing.T) {
	t.Parallel()
	version, last := lastRights(t)
	rows := newRights(redistest.File(t, "docs/releases.md"), version)
	for _, u := range users(t) {
		i := slices.IndexFunc(last, func(old user) bool { return old.role == u.role })
		if i < 0 {
			continue // nobody has such a user yet
		}
		require.Empty(t, lacking(last[i], u), "the %s of %s had more rights: its programs stop when the new file is loaded", u.role, version)
		missing := lacking(u, last[i])
		var listed, refused []string
		for _, row := range rows[u.role] {
			listed, refused = append(listed, row.right), append(refused, row.refused...)
		}
		require.ElementsMatch(t, missing, listed, "the %s of %s has not these rights: see Changing what is stored in CONTRIBUTING.md", u.role, version)
		if len(missing) > 0 {
			redistest.Need(t)
			slices.Sort(refused)
			require.Equal(t, refusedTo(t, last[i]), slices.Compact(refused), "what is refused to the %s of %s", u.role, version)
		}
	}
}

// The rule above finds what a right more would stop, and reads it from the table.
func TestRightsThatALaterReleaseNeeds(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	for _, u := range users(t) {
		if u.role != "producer" {
			continue
		}
		const right = "~delayq:{*}:parked"
		old := u.without(right)
		require.Equal(t, []string{right}, lacking(u, old))
		require.Empty(t, lacking(old, u))
		calls := refusedTo(t, old)
		require.Equal(t, []string{"Call", "CancelBatch", "Dequeue", "Enqueue", "Group", "OpenGroup", "Reschedule", "RescheduleBatch", "Start", "Unschedule", "Wait"}, calls)
		row := "| release |\n| v0.10.0 | producer | `" + right + "` | `" + strings.Join(calls, "`, `") + "` |\n"
		require.Equal(t, map[string][]newRight{"producer": {{"v0.10.0", "producer", right, calls}}}, newRights(row, "v0.9.9"))
		require.Empty(t, newRights(row, "v0.10.0"))
	}
}

// With rights of later releases, programs of today do what they did. Without rights that they need,
// a job waits, or keeps its lease after its run. When the rights come, it goes on.
func TestUpgradeInEitherOrder(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rs := redistest.Start(t, redistest.NoRoles...)
	admin, ctx := rs.Client(t), t.Context()
	var worker user
	for _, u := range users(t) {
		u.set(t, admin, "~delayq:{*}:later", "+zremrangebylex")
		if u.role == "worker" {
			worker = u
		}
	}
	client := newClient(queuetest.ACLClient(t, rs, "producer"), script.DefaultPrefix)
	rdb := queuetest.ACLClient(t, rs, "worker")
	runs, refused, acked := make(chan string, 10), make(chan string, 100), make(chan string, 10)
	notes := queuetest.OnScript(func(e delayq.ScriptEvent) {
		if e.Err != nil && strings.Contains(e.Err.Error(), "NOPERM") {
			select {
			case refused <- e.Name:
			default: // it is told often enough
			}
		}
	})
	server := queuetest.NewServer(rdb, script.DefaultPrefix, delayq.Hooks(notes), delayq.Hooks(doneID(acked)))
	finish := make(chan bool)
	require.NoError(t, server.HandlerFunc("topic", func(_ context.Context, job *delayq.Job) error {
		runs <- fmt.Sprint(job.ID, " ", job.Attempt)
		<-finish
		return nil
	}))
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	until := func(script string) {
		for name := range refused {
			if name == script {
				return
			}
		}
	}
	enqueue := func(id string) { require.NoError(t, just(client.Enqueue(ctx, "topic", id, nil))) }

	enqueue("the file first")
	require.Equal(t, "the file first 1", <-runs)
	finish <- true
	require.Equal(t, "the file first", <-acked)
	nothingDenied(t, admin)

	worker.without("~delayq:{*}:taken:*").set(t, admin)
	enqueue("not taken")
	until("take")
	info, err := client.Get(ctx, "topic", "not taken")
	require.NoError(t, err)
	require.Equal(t, delayq.StateReady, info.State)
	worker.set(t, admin)
	require.Equal(t, "not taken 1", <-runs)
	worker.without("~delayq:{*}:results").set(t, admin)
	finish <- true
	until("ack")
	info, err = client.Get(ctx, "topic", "not taken")
	require.NoError(t, err)
	require.Equal(t, delayq.StateRunning, info.State)
	worker.set(t, admin)
	require.Equal(t, "not taken", <-acked)
	stop()
	require.NoError(t, <-ended)
	require.Empty(t, runs, "each job has run once")
}

// A doneID receives the IDs of jobs that have succeeded.
type doneID chan string

func (c doneID) Done(e delayq.RunEvent) { c <- e.ID }
