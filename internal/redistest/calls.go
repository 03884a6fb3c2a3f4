package redistest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// RoleNames are the names of the roles, in the order of the table in docs/security.md.
var RoleNames = []string{"producer", "worker", "operator", "inspector"}

// CallRoles reads the table of docs/security.md: the roles that may make each call.
func CallRoles(text string) map[string][]string {
	roles := map[string][]string{}
	_, text, _ = strings.Cut(text, "| call | producer | worker | operator | inspector |")
	text, _, _ = strings.Cut(text, "\n\n")
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 {
			continue
		}
		for _, call := range regexp.MustCompile("`([\\w.]+)`").FindAllStringSubmatch(cells[1], -1) {
			for i, role := range RoleNames {
				if roles[call[1]] = slices.Grow(roles[call[1]], 1); strings.TrimSpace(cells[2+i]) == "yes" {
					roles[call[1]] = append(roles[call[1]], role)
				}
			}
		}
	}
	return roles
}

// MethodRoles returns the roles that call each method of Client and Inspector in the tests: the
// producer, the operator, the inspector or several of them, by docs/security.md.
var MethodRoles = sync.OnceValue(func() map[string][]string {
	text, err := os.ReadFile(Path("docs", "security.md"))
	if err != nil {
		panic(err)
	}
	roles := CallRoles(string(text))
	delete(roles, "Run")
	for name := range roles {
		roles[name] = slices.DeleteFunc(roles[name], func(role string) bool { return role == "worker" })
	}
	return roles
})

// ofOperators returns the method that has made a call in a goroutine of others: one that operators
// alone may make, or else other.
func ofOperators(call Call, other string) string {
	for _, arg := range call.Cmd.Args() {
		if key, ok := arg.(string); ok && strings.HasSuffix(key, "}:operator") {
			return "Revive"
		}
	}
	return other
}

// MethodRole is the RoleOf of tests that use the exported API alone. Roles that may make the same
// call take turns.
func MethodRole(call Call) (role, what string) {
	for _, arg := range call.Cmd.Args()[:min(len(call.Cmd.Args()), 4)] { // with the first key
		if key, ok := arg.(string); ok && strings.HasSuffix(key, ":audit") && call.Function != "Inspector.Audit" {
			return "operator", "audit" // whoever acts
		}
	}
	if strings.HasPrefix(call.Function, "friends.") { // rows of an outbox
		call.Function = "(*Group).fly"
	}
	switch call.Function {
	case "(*Group).fly", "(*Groups).pay": // for callers of single calls
		call.Function = ofOperators(call, "Enqueue")
	case "(*Waits).fly": // for callers of Wait and Call
		call.Function = "Wait"
	case "spread": // an Inspector's, on goroutines of their own
		if roles := MethodRoles()["Inspector.Stats"]; len(roles) > 0 {
			return roles[call.Turn%uint(len(roles))], call.Function
		}
	case "eachPlace", "Caller.Send": // a call for each place of a topic, or a Client's own on a Cluster
		call.Function = "Partition"
	case "(*application).readAhead":
		call.Function = "Apply"
	case "(*walk).sendAll": // the places of a topic, for callers of single calls
		call.Function = ofOperators(call, "Enqueue")
	case "(*conveyor).start": // for calls about many jobs
		call.Function = ofOperators(call, "EnqueueBatch")
	}
	roles := MethodRoles()[call.Function]
	if len(roles) == 0 {
		return "", ""
	}
	return roles[call.Turn%uint(len(roles))], call.Function
}
