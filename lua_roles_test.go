package delayq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// With DELAYQ_ROLES (internal/redistest/roles.go) the tests on a real Redis are made as the users
// of docs/acl/delayq.acl: a server is a worker, a client's call is the producer's or the operator's
// as docs/security.md has it, and a Hand's is that of whoever runs the script. A call that two
// roles may make is made by both in turn.

func init() { redistest.RoleOf = roleOf }

// scriptRoles are the roles that may run a script.
var scriptRoles = map[*script][]string{
	enqueueScript: {"producer"}, replaceScript: {"producer"}, scheduleSetScript: {"producer", "operator"},
	promoteScript: {"worker"}, takeScript: {"worker"}, extendScript: {"worker"}, ackScript: {"worker"}, againScript: {"worker"}, retryScript: {"worker"},
	snoozeScript: {"worker"}, giveBackScript: {"worker"}, buryScript: {"worker"}, pruneScript: {"worker"}, heartbeatScript: {"worker"},
	scheduleDueScript: {"worker"}, scheduleFireScript: {"worker"}, idleScript: {"worker"},
	checkScript: {"worker", "operator"}, mendScript: {"worker", "operator"},
	reviveScript: {"operator"}, deleteScript: {"operator"}, listScript: {"operator"}, inspectScript: {"operator"}, pauseScript: {"operator"}, schedulePauseScript: {"operator"},
	cancelScript: {"producer", "operator"}, rescheduleScript: {"producer", "operator"}, getScript: {"producer", "operator"},
	scheduleRemoveScript: {"producer", "operator"}, scheduleTriggerScript: {"producer", "operator"}, scheduleInfoScript: {"producer", "operator"},
}

func roleOf(call redistest.Call) (role, what string) {
	if role, what := redistest.MethodRole(call); role != "" {
		return role, what
	}
	inTurn := func(roles []string) string { return roles[call.Turn%uint(len(roles))] }
	switch call.Cmd.Name() { // by a Hand, or by a test of the function
	case "type":
		return inTurn(tourRoles), "type"
	case "eval", "evalsha":
		for s, roles := range scriptRoles {
			if what := call.Cmd.Args()[1]; what == s.digest || what == s.text {
				return inTurn(roles), s.name
			}
		}
	}
	return "", ""
}

// AsWorker makes a server the worker, if the client that it was given is divided among the roles.
func AsWorker(s *Server) *Server {
	rdb, test := redistest.Worker(s.rdb, s.o.prefix)
	if test != "" {
		s.rdb = rdb
		s.o.hooks.script = append(s.o.hooks.script, workerCalls{test})
	}
	return s
}

// workerCalls counts what servers call.
type workerCalls struct{ test string }

func (w workerCalls) Script(e ScriptEvent) { redistest.Count("worker", e.Name, w.test) }

// RolesError returns what no role has asked for in all tests.
func RolesError() error {
	var errs []error
	for method, roles := range redistest.MethodRoles() {
		for _, role := range roles {
			if tally := redistest.Tallies()[role]; tally == nil || tally.Did[method] == 0 {
				errs = append(errs, fmt.Errorf("no test has called %s as the %s", method, role))
			}
		}
	}
	for s, roles := range scriptRoles {
		if slices.Contains(roles, "worker") {
			if tally := redistest.Tallies()["worker"]; tally == nil || tally.Did[s.name] == 0 {
				errs = append(errs, fmt.Errorf("no server has called %s", s.name))
			}
		}
	}
	return errors.Join(errs...)
}

// A test asks as the user default, which cannot run scripts, the library as its three users, and
// what is denied to these is told. Here with or without DELAYQ_ROLES.
func TestCallsAreMadeByTheUsers(t *testing.T) {
	t.Setenv("DELAYQ_ROLES", aclFile)
	rs := redistest.Start(t)
	rdb, ctx := rs.Client(t), t.Context()
	client := NewClient(rdb, Prefix("other"))
	acked := make(chan struct{}, 1)
	server := AsWorker(NewServer(rdb, Prefix("other"), Logger(slog.New(slog.DiscardHandler)), Hooks(doneHook(func() { acked <- struct{}{} }))))
	server.HandlerFunc("topic", func(context.Context, *Job) error { return rdb.Ping(ctx).Err() })
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	for _, id := range []string{"x", "y"} { // by the producer and by the operator
		_, err := client.Enqueue(ctx, "topic", id, nil)
		require.NoError(t, err)
		<-acked
	}
	users := map[string]bool{}
	for _, m := range regexp.MustCompile(`user=(\S+)`).FindAllStringSubmatch(rdb.ClientList(ctx).Val(), -1) {
		users[m[1]] = true
	}
	require.Equal(t, map[string]bool{"default": true, "delayq-producer/other": true, "delayq-worker/other": true, "delayq-operator/other": true}, users)
	stop()
	require.NoError(t, <-ended)
	require.ErrorContains(t, rdb.Eval(ctx, "return 1", nil).Err(), "NOPERM")
	require.ErrorContains(t, redistest.Denied(), "eval was denied to default")
	require.NoError(t, rdb.Do(ctx, "ACL", "LOG", "RESET").Err())

	require.NoError(t, rs.Restart())
	_ = rdb.Ping(ctx) // drops the connection that the restart has cut
	require.NoError(t, rdb.Do(ctx, "ACL", "SETUSER", "delayq-producer/other", "-evalsha").Err())
	_, once := client.Enqueue(ctx, "topic", "x", nil)
	_, twice := client.Enqueue(ctx, "topic", "y", nil)
	require.ErrorContains(t, errors.Join(once, twice), "NOPERM")
	require.ErrorContains(t, redistest.Denied(), "evalsha was denied to delayq-producer/other")
	require.NoError(t, rdb.Do(ctx, "ACL", "LOG", "RESET").Err())
}

// Each method of Client, and each script, is something that a role may call.
func TestEveryCallHasARole(t *testing.T) {
	t.Parallel()
	methods := reflect.TypeFor[*Client]()
	for i := range methods.NumMethod() {
		require.NotEmpty(t, redistest.MethodRoles()[methods.Method(i).Name], methods.Method(i).Name)
	}
	require.Len(t, redistest.MethodRoles(), methods.NumMethod())
	for _, s := range allScripts {
		require.NotEmpty(t, scriptRoles[s], s.name)
	}
	require.Len(t, scriptRoles, len(allScripts))
}
