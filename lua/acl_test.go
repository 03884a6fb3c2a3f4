package lua_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// serverCalls are what a Server has beside Run. They ask Redis nothing but what Run does. For the
// probes of HealthHandler see TestHealthz.
var serverCalls = []string{"Calendar", "Handle", "HandleBatch", "HandlerFunc", "Health", "ID", "Ready", "Remove", "Use", "UseBatch"}

// Each method of Client, Inspector and Server that asks Redis, and no other call, is in the table
// of docs/security.md and in deeds, and a role may make it. A role may call each script.
func TestEveryCallHasARole(t *testing.T) {
	t.Parallel()
	var calls []string
	for kind, others := range map[reflect.Type][]string{
		reflect.TypeFor[*delayq.Client](): nil, reflect.TypeFor[*delayq.Inspector](): {"Prefix"}, reflect.TypeFor[*delayq.Server](): serverCalls,
	} {
		for i := range kind.NumMethod() {
			if name := kind.Method(i).Name; slices.Contains(others, name) {
				continue
			} else if kind == reflect.TypeFor[*delayq.Inspector]() {
				calls = append(calls, "Inspector."+name)
			} else {
				calls = append(calls, name)
			}
		}
	}
	var tried, listed []string
	for _, d := range deeds {
		tried = append(tried, d.call)
	}
	for call, roles := range table(t) {
		listed = append(listed, call)
		require.NotEmpty(t, roles, call)
		require.True(t, call == "Run" || len(redistest.MethodRoles()[call]) > 0, call)
	}
	require.ElementsMatch(t, calls, listed, "the calls of the table")
	slices.Sort(tried)
	require.ElementsMatch(t, calls, slices.Compact(tried), "the calls of deeds")
	for _, s := range script.All {
		require.NotEmpty(t, hand.ScriptRoles[s], s.Name)
	}
	require.Len(t, hand.ScriptRoles, len(script.All))
}

// table is that of docs/security.md.
func table(t *testing.T) map[string][]string {
	return redistest.CallRoles(redistest.File(t, "docs/security.md"))
}

// A user is a line of the ACL file.
type user struct {
	role  string
	words []string // from the name on
}

// users reads the ACL file. The commands of each user are sorted.
func users(t *testing.T) []user {
	t.Helper()
	return usersOf(t, redistest.File(t, hand.ACLFile))
}

// usersOf reads the text of an ACL file.
func usersOf(t *testing.T, text string) (list []user) {
	t.Helper()
	var roles []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		require.Equal(t, "user", words[0])
		role, ok := strings.CutPrefix(words[1], "delayq-")
		require.True(t, ok)
		require.True(t, slices.IsSorted(words[slices.Index(words, "-@all")+1:]), "%s: sorted", role)
		roles, list = append(roles, role), append(list, user{role, words[1:]})
	}
	require.ElementsMatch(t, redistest.RoleNames, roles)
	return list
}

// set creates the user on a server, or changes its rights.
func (u user) set(t *testing.T, admin *redis.Client, more ...string) {
	t.Helper()
	setuser := []any{"ACL", "SETUSER", u.words[0], "reset"}
	for _, word := range slices.Concat(u.words[1:], more) {
		setuser = append(setuser, word)
	}
	require.NoError(t, admin.Do(t.Context(), setuser...).Err())
}

// without is the user with one right less.
func (u user) without(right string) user {
	return user{u.role, slices.DeleteFunc(slices.Clone(u.words), func(word string) bool { return word == right })}
}

// rights are the words that grant something.
func (u user) rights() []string {
	return slices.DeleteFunc(slices.Clone(u.words[1:]), func(word string) bool { return !strings.ContainsAny(word[:1], "+~&") })
}

// may lists what the table gives to a role, and the calls that it does not give it.
func may(t *testing.T, role string) (allowed, denied []deed) {
	roles := table(t)
	if slices.Contains(roles["Run"], role) {
		allowed = slices.Clone(chores)
	}
	for _, d := range deeds {
		if slices.Contains(roles[d.call], role) {
			allowed = append(allowed, d)
		} else {
			denied = append(denied, d)
		}
	}
	return allowed, denied
}

// play makes a call as the user of a client.
func (d deed) play(t *testing.T, rdb redis.UniversalClient, prefix, topic string) error {
	return d.do(&caller{client: newClient(rdb, prefix), hand: NewHand(t, rdb, prefix, topic), ctx: t.Context(), topic: topic})
}

// Each user of the ACL file can make the calls that the table in docs/security.md gives to its
// role, and no other ones, and needs each of its rights for them. (J10)
func TestACLGrantsWhatIsNeededAndNoMore(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	scripts := &headers{read: map[string]redistest.Header{}}
	t.Run("roles", func(t *testing.T) {
		for _, u := range users(t) {
			t.Run(u.role, func(t *testing.T) {
				t.Parallel()
				rs := redistest.Start(t, "--aclfile", redistest.Path(hand.ACLFile))
				admin, rdb := rs.Client(t), queuetest.ACLClient(t, rs, u.role)
				allowed, denied := may(t, u.role)
				uses := map[string][]int{} // right → what uses it
				for i, d := range allowed {
					what := fmt.Sprintf("%s (%d) as the %s", d.call, i, u.role)
					stageFor(t, admin, script.DefaultPrefix, "topic", d.stage)
					seen := watchCommands(t, admin, rs.Addr())
					require.NoError(t, d.play(t, rdb, script.DefaultPrefix, "topic"), what)
					for _, command := range seen() {
						scripts.check(t, command.args)
						for _, right := range u.rights() {
							if !slices.Contains(uses[right], i) && command.uses(right) {
								uses[right] = append(uses[right], i)
							}
						}
					}
					nothingDenied(t, admin)
				}
				nothingElse(t, admin, rdb, script.DefaultPrefix, "topic", denied)
				nothingOfOthers(t, rdb)
				if u.role == "producer" {
					waitsForReplicas(t, u, admin, rdb)
				}
				if testing.Short() {
					return
				}
				for _, right := range u.rights() {
					if slices.Contains(spares, right) {
						require.Empty(t, uses[right], "%s is not spare any more", right)
						continue
					}
					u.without(right).set(t, admin)
					require.True(t, slices.ContainsFunc(uses[right], func(i int) bool { return lacks(t, admin, rdb, allowed[i], right) }),
						"without %s nothing is refused to the %s", right, u.role)
				}
			})
		}
	})
	for _, s := range script.All {
		require.Contains(t, scripts.read, s.Name, "a script that nobody calls")
	}
}

// spares are rights to keys that later releases may have: no key has such a name yet.
var spares = []string{"~delayq:{*}:serve:*"}

// uses reports whether a command seems to need a right.
func (c seenCommand) uses(right string) bool {
	return slices.ContainsFunc(c.args, func(arg string) bool {
		switch matched, _ := path.Match(right[1:], arg); right[0] {
		case '+':
			return right[1:] == c.name
		case '&':
			return matched && (c.name == "publish" || c.name == "subscribe")
		default:
			return matched
		}
	})
}

// lacks reports whether Redis refuses something of a call for want of a right.
func lacks(t *testing.T, admin, rdb *redis.Client, d deed, right string) bool {
	t.Helper()
	stageFor(t, admin, script.DefaultPrefix, "topic", d.stage)
	require.NoError(t, admin.ScriptFlush(t.Context()).Err()) // for EVAL
	_ = d.play(t, rdb, script.DefaultPrefix, "topic")
	denied, err := admin.ACLLog(t.Context(), 100).Result()
	require.NoError(t, err)
	return slices.ContainsFunc(denied, func(entry *redis.ACLLogEntry) bool {
		switch right[0] {
		case '+':
			return entry.Reason == "command" && strings.EqualFold("+"+entry.Object, right)
		case '&':
			return entry.Reason == "channel"
		default:
			return entry.Reason == "key"
		}
	})
}

// refusal is how Redis refuses a call, and a command within a script.
const refusal = "NOPERM|can't run this command|can't access|ACL failure"

// nothingElse makes sure that calls are refused, and that they change nothing.
func nothingElse(t *testing.T, admin, rdb *redis.Client, prefix, topic string, list []deed) {
	t.Helper()
	stageFor(t, admin, prefix, topic, unpaused) // servers take
	before := redistest.Dump(t, admin, prefix)
	for i, d := range list {
		err := d.play(t, rdb, prefix, topic)
		require.Error(t, err, "%s (%d)", d.call, i)
		require.Regexp(t, refusal, err.Error(), "%s (%d)", d.call, i)
		after := redistest.Dump(t, admin, prefix)
		if d.call != "Run" { // which says in servers that it is there
			require.Equal(t, before, after, "%s (%d)", d.call, i)
		}
		before = after
	}
}

// nothingOfOthers makes sure that a user may not touch what is not the queue's: another prefix,
// another channel, another command.
func nothingOfOthers(t *testing.T, rdb *redis.Client) {
	t.Helper()
	for _, command := range [][]any{
		{"HGET", "other:{t}:pool", "id"}, {"HSET", "mine", "a", "b"}, {"DEL", "delayqx:{t}:pool"}, {"GET", "delayq:other"},
		{"PUBLISH", "other:control", "x"}, {"SUBSCRIBE", "delayq:other"}, {"KEYS", "*"}, {"SCAN", "0"}, {"FLUSHALL"}, {"FLUSHDB"},
		{"CONFIG", "GET", "*"}, {"ACL", "LIST"}, {"MONITOR"}, {"SHUTDOWN"}, {"DEBUG", "SLEEP", "0"}, {"SCRIPT", "FLUSH"},
		{"REPLICAOF", "NO", "ONE"}, {"CLIENT", "KILL", "TYPE", "normal"}, {"HGETALL", "delayq:{t}:pool"}, {"RENAME", "delayq:{t}:pool", "delayq:{t}:x"},
		{"EVAL", "return redis.call('GET', KEYS[1])", "1", "other"}, {"EVAL", "return redis.call('FLUSHALL')", "0"},
	} {
		err := rdb.Do(t.Context(), command...).Err()
		require.Error(t, err, "%v", command)
		require.Regexp(t, refusal, err.Error(), "%v", command)
	}
}

// waitsForReplicas makes sure that with WaitReplicas a producer needs one right more. There is no
// replica here.
func waitsForReplicas(t *testing.T, u user, admin, rdb *redis.Client) {
	t.Helper()
	stageFor(t, admin, script.DefaultPrefix, "topic", nil)
	u.set(t, admin, "+wait")
	waiting := newClient(rdb, script.DefaultPrefix, delayq.WaitReplicas(1, time.Millisecond))
	require.ErrorIs(t, just(waiting.Enqueue(t.Context(), "topic", "replicated", nil)), delayq.ErrNotReplicated)
	nothingDenied(t, admin)
}

// ofThePrefix are the calls that read keys of the whole prefix, or write those of other topics.
var ofThePrefix = []string{"Partition", "Inspector.Topics", "Inspector.Servers", "Inspector.Stats", "Inspector.Find", "Inspector.Audit", "Inspector.Explain"}

// A user is kept to one topic, or to another prefix, by other patterns, as docs/security.md says:
// there it can do all that it could, and elsewhere nothing.
func TestACLCanBeNarrowed(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ wide, narrow, prefix, topic string }{
		"a topic":        {"delayq:{*}:", "delayq:{mail}:", "delayq", "mail"},
		"another prefix": {"delayq:", "shop:", "shop", "post"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rs := redistest.Start(t, redistest.NoRoles...)
			admin := rs.Client(t)
			for _, u := range users(t) {
				for i, word := range u.words {
					u.words[i] = strings.Replace(word, c.wide, c.narrow, 1)
				}
				u.set(t, admin)
				rdb := queuetest.ACLClient(t, rs, u.role)
				allowed, _ := may(t, u.role)
				allowed = slices.DeleteFunc(allowed, func(d deed) bool {
					return d.call == "Run" || d.call == "Inspector.Redis" || what == "a topic" && slices.Contains(ofThePrefix, d.call)
				})
				for i, d := range allowed {
					stageFor(t, admin, c.prefix, c.topic, d.stage)
					require.NoError(t, d.play(t, rdb, c.prefix, c.topic), "%s (%d) as the %s", d.call, i, u.role)
					nothingDenied(t, admin)
				}
				nothingElse(t, admin, rdb, script.DefaultPrefix, "post", allowed)
			}
		})
	}
}

// On a cluster each user needs two rights more.
func TestACLOnACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	c := redistest.StartCluster(t, 3, 0)
	admin := c.Client(t)
	nodes := make([]*redis.Client, 0, 3)
	for _, addr := range c.Addrs() {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		nodes = append(nodes, rdb)
	}
	for _, u := range users(t) {
		for _, rdb := range nodes {
			u.set(t, rdb, "+cluster|slots", "+command")
		}
		opt := c.Options()
		opt.Username, opt.Password = "delayq-"+u.role, "change-me-"+u.role
		rdb := redis.NewClusterClient(opt)
		t.Cleanup(func() { _ = rdb.Close() })
		allowed, _ := may(t, u.role)
		for i, d := range allowed {
			stageFor(t, admin, script.DefaultPrefix, "topic", d.stage)
			require.NoError(t, d.play(t, rdb, script.DefaultPrefix, "topic"), "%s (%d) as the %s", d.call, i, u.role)
			for _, rdb := range nodes {
				nothingDenied(t, rdb)
			}
		}
	}
}

func nothingDenied(t *testing.T, admin *redis.Client) {
	t.Helper()
	denied, err := admin.ACLLog(context.Background(), 100).Result()
	require.NoError(t, err)
	for _, entry := range denied {
		require.True(t, redistest.Optional(entry.Object), "denied: %+v", *entry)
	}
}

// With DELAYQ_ROLES, each role makes each call that the table gives it.
func TestEachRoleMakesItsCalls(t *testing.T) {
	t.Parallel()
	if !redistest.Roles() {
		t.Skip("the roles are those of DELAYQ_ROLES; TestACLGrantsWhatIsNeededAndNoMore makes these calls as users of its own")
	}
	rs := redistest.Start(t)
	rdb := rs.Client(t)
	for i, d := range deeds {
		for range redistest.MethodRoles()[d.call] { // the roles take turns
			h := stageFor(t, rdb, script.DefaultPrefix, fmt.Sprint(d.call, i), d.stage)
			require.NoError(t, d.play(t, rdb, script.DefaultPrefix, h.Keys.Topic), "%s (%d)", d.call, i)
			nothingDenied(t, rdb)
		}
	}
	for range 4 { // a server checks too, in turn with the operator
		h := stageFor(t, rdb, script.DefaultPrefix, "checked", nil)
		require.NoError(t, doctor.New(script.Caller{RDB: rdb}, rdb, h.Keys, true).Check(t.Context()))
		nothingDenied(t, rdb)
	}
}

// A test asks as the user default, which cannot run scripts, the library as its users, and
// what is denied to these is told. Here with or without DELAYQ_ROLES.
func TestCallsAreMadeByTheUsers(t *testing.T) {
	t.Setenv("DELAYQ_ROLES", hand.ACLFile)
	rs := redistest.Start(t)
	rdb, ctx := rs.Client(t), t.Context()
	client := newClient(rdb, "other")
	acked := make(chan struct{}, 1)
	server := queuetest.NewServer(rdb, "other", delayq.Hooks(doneHook(func() { acked <- struct{}{} })))
	server.HandlerFunc("topic", func(context.Context, *delayq.Job) error { return rdb.Ping(ctx).Err() })
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

// A seenCommand is a command that Redis has carried out, by itself or within a script.
type seenCommand struct {
	name string
	args []string // with the name
}

var monitored = regexp.MustCompile(`^\+[\d.]+ \[[^\]]+\] (".*")`)

// watchCommands begins to note all commands, and returns a function that ends it and gives what was
// noted.
func watchCommands(t *testing.T, admin *redis.Client, addr string) func() []seenCommand {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	_, err = lines.ReadString('\n')
	require.NoError(t, err)
	return func() (list []seenCommand) {
		const last = "that was all"
		defer func() { _ = conn.Close() }()
		require.NoError(t, admin.Echo(context.Background(), last).Err())
		for {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			m := monitored.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			var command seenCommand
			for rest := m[1]; rest != ""; rest = strings.TrimPrefix(rest, " ") {
				quoted, err := strconv.QuotedPrefix(rest)
				require.NoError(t, err, rest)
				arg, err := strconv.Unquote(quoted)
				require.NoError(t, err)
				command.args, rest = append(command.args, arg), rest[len(quoted):]
			}
			if slices.Contains(command.args, last) {
				return list
			}
			command.name = strings.ToLower(command.args[0])
			list = append(list, command)
		}
	}
}

// headers makes sure that every script is given the keys, and as many of them, as its header says.
type headers struct {
	mu   sync.Mutex
	read map[string]redistest.Header // of the scripts that have been called
}

func (h *headers) of(t *testing.T, name string) redistest.Header {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	header, known := h.read[name]
	if !known {
		header = redistest.HeaderOf(t, name)
		h.read[name] = header
	}
	return header
}

// check reads a command that Redis has been given.
func (h *headers) check(t *testing.T, args []string) {
	t.Helper()
	at := slices.IndexFunc(script.All, func(s *script.Script) bool {
		return len(args) > 2 && args[1] == s.Digest
	})
	if at < 0 {
		return
	}
	name := script.All[at].Name
	header := h.of(t, name)
	n, err := strconv.Atoi(args[2])
	require.NoError(t, err)
	keys := header.Keys
	if header.Rest["keys"] > 0 { // the header lists those of one topic, and there may be several
		keys = eachKey(t, name)
		keys = slices.Repeat(keys, n/len(keys))
	}
	require.Len(t, keys, n, name)
	for i, key := range args[3 : 3+n] {
		_, given, _ := strings.Cut(key, ":")
		if _, own, ok := strings.Cut(key, "}:"); ok {
			given = strings.TrimPrefix(strings.TrimPrefix(own, "all:"), "serve:")
		}
		if keys[i] == "receipt" {
			given = regexp.MustCompile(`^(receipt|taken):[\w.~#]+$`).ReplaceAllString(given, "receipt")
		}
		require.Equal(t, keys[i], given, "%s: KEYS[%d]", name, i+1)
	}
	require.GreaterOrEqual(t, len(args)-3-n, len(header.Args)-len(header.Rest), name)
}

// rawTopics are the keys of a script about several topics, for these.
func rawTopics(t *testing.T, name string, topics ...*script.Keys) (list []string) {
	for _, k := range topics {
		for _, key := range eachKey(t, name) {
			list = append(list, k.Key(key))
		}
	}
	return list
}

// eachKey lists the keys of each topic in the header of a script about several topics.
func eachKey(t *testing.T, name string) []string {
	_, list, found := strings.Cut(redistest.HeaderOf(t, name).Text, " keys  ")
	require.True(t, found, name)
	list = regexp.MustCompile(`\n--\s+`).ReplaceAllString(list, " ")
	list, _, _ = strings.Cut(list, " of each topic")
	return strings.Split(list, ", ")
}
