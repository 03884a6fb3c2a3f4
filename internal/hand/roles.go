package hand

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// ACLFile is the file with the users, from the root of the repository.
const ACLFile = "docs/acl/delayq.acl"

// With DELAYQ_ROLES (internal/redistest/roles.go) the tests on a real Redis are made as the users
// of docs/acl/delayq.acl: a server is a worker, a client's call is the producer's or the operator's
// as docs/security.md has it, and a Hand's is that of whoever runs the script. A call that two
// roles may make is made by both in turn.

func init() { redistest.RoleOf = roleOf }

// ScriptRoles are the roles that may run a script.
var ScriptRoles = map[*script.Script][]string{
	script.Enqueue: {"producer", "worker"}, script.EnqueueLater: {"producer"}, script.EnqueueNow: {"producer"}, script.EnqueueKeyed: {"producer", "worker"}, script.Replace: {"producer", "worker"}, script.ScheduleSet: {"producer", "operator"},
	script.Promote: {"worker"}, script.Take: {"worker"}, script.Extend: {"worker"}, script.Ack: {"worker"}, script.Again: {"worker"}, script.HandOver: {"worker"}, script.HandOverAgain: {"worker"}, script.ParcelPlan: {"worker"}, script.ParcelDone: {"worker"}, script.Retry: {"worker"},
	script.Snooze: {"worker"}, script.GiveBack: {"worker"}, script.Bury: {"worker"}, script.Prune: {"worker"}, script.Heartbeat: {"worker"},
	script.ScheduleDue: {"worker"}, script.ScheduleFire: {"worker"}, script.Watch: {"worker"},
	script.Ring: {"worker"}, script.Unpark: {"worker", "operator"}, script.Survey: {"worker"}, script.Chronicle: {"worker"},
	script.Wait: {"producer", "operator"}, script.Note: {"worker"}, script.Recall: {"worker"},
	script.Check: {"worker", "operator"}, script.Mend: {"worker", "operator"},
	script.Revive: {"operator"}, script.Delete: {"operator"}, script.Page: {"operator"}, script.Inspect: {"operator"}, script.Explain: {"operator"}, script.ListKeys: {"operator"}, script.Pause: {"operator"}, script.Hold: {"operator"}, script.Limits: {"operator"}, script.SetPriority: {"producer", "operator"}, script.KeyLimits: {"operator"}, script.KeyHold: {"operator"}, script.Audit: {"operator"}, script.BuryWaiting: {"operator"}, script.RemoveTopic: {"operator"}, script.SchedulePause: {"operator"},
	script.Cancel: {"producer", "operator"}, script.Reschedule: {"producer", "operator"}, script.Get: {"producer", "operator"},
	script.FlowStart: {"producer"}, script.FlowAdd: {"producer"}, script.FlowRelease: {"producer", "worker"}, script.FlowRead: {"producer", "operator"}, script.EnqueueLinked: {"worker"}, script.Arrive: {"worker"}, script.FlowBegin: {"worker"}, script.FlowSweep: {"worker"}, script.FlowCancel: {"worker"}, script.FlowInputs: {"worker"}, script.FlowLook: {"worker"}, script.FlowStarted: {"worker"}, script.FlowLost: {"worker"},
	script.Partition: {"operator"}, script.PartMap: {"producer", "worker", "operator"}, script.PartClose: {"worker", "operator"}, script.PartEmpty: {"worker"}, script.PartKeys: {"worker"}, script.PartRetire: {"worker"}, script.PartShare: {"worker"},
	script.ScheduleRemove: {"producer", "operator"}, script.ScheduleTrigger: {"producer", "operator"}, script.ScheduleInfo: {"producer", "operator"},
}

func roleOf(call redistest.Call) (role, what string) {
	if role, what := redistest.MethodRole(call); role != "" {
		return role, what
	}
	inTurn := func(roles []string) string { return roles[call.Turn%uint(len(roles))] }
	switch call.Cmd.Name() { // by a Hand, or by a test of the function
	case "type":
		key := call.Cmd.Args()[1].(string)
		return inTurn(slices.DeleteFunc(slices.Clone(redistest.RoleNames), func(role string) bool { return !mayUse(role, key) })), "type"
	case "eval", "evalsha", "eval_ro", "evalsha_ro":
		for s, roles := range ScriptRoles {
			if what := call.Cmd.Args()[1]; what == s.Digest || what == s.Text {
				return inTurn(roles), s.Name
			}
		}
		if s := firstRelease()[fmt.Sprint(call.Cmd.Args()[1])]; s != nil {
			return inTurn(ScriptRoles[s]), s.Name
		}
	}
	return "", ""
}

// firstRelease maps the text and the digest of each script of v0.1.0 to the present script.
var firstRelease = sync.OnceValue(func() map[string]*script.Script {
	known := make(map[string]*script.Script)
	for s := range ScriptRoles {
		text, err := os.ReadFile(redistest.Path("lua/testdata/v0.1.0", s.Name+".lua"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			panic(err)
		}
		known[string(text)], known[redis.NewScript(string(text)).Hash()] = s, s
	}
	return known
})

// aclText is the text of the ACL file.
var aclText = sync.OnceValue(func() string {
	text, err := os.ReadFile(redistest.Path(ACLFile))
	if err != nil {
		panic(err)
	}
	return string(text)
})

// mayUse reports whether a role has a right to a key.
func mayUse(role, key string) bool {
	pattern := "~delayq" + key[strings.LastIndexByte(key, ':'):]
	if _, name, ok := strings.Cut(key, "}:"); ok {
		name, _, several := strings.Cut(name, ":")
		if pattern = "~delayq:{*}:" + name; several {
			pattern += ":*"
		}
	}
	for line := range strings.Lines(aclText()) {
		if words := strings.Fields(line); words[1] == "delayq-"+role {
			return slices.Contains(words, pattern)
		}
	}
	return false
}

// sentByOthers are methods whose scripts are sent by goroutines of many callers. Of these, Enqueue
// counts.
var sentByOthers = map[string]bool{"Wait": true, "Call": true, "Start": true, "OpenGroup": true, "Group": true}

// RolesError returns what no role has asked for in all tests of a package.
func RolesError() error {
	var errs []error
	for method, roles := range redistest.MethodRoles() {
		if sentByOthers[method] {
			continue
		}
		for _, role := range roles {
			if tally := redistest.Tallies()[role]; tally == nil || tally.Did[method] == 0 {
				errs = append(errs, fmt.Errorf("no test has called %s as the %s", method, role))
			}
		}
	}
	for s, roles := range ScriptRoles {
		if slices.Contains(roles, "worker") {
			if tally := redistest.Tallies()["worker"]; tally == nil || tally.Did[s.Name] == 0 {
				errs = append(errs, fmt.Errorf("no server has called %s", s.Name))
			}
		}
	}
	return errors.Join(errs...)
}
