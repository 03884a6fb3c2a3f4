package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// The memory of topics needs a right that no role has, and says which. A producer may enqueue from
// the command line, and hears that the audit does not have it; an operator's enqueue is there.
func TestRightsBesideTheRoles(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	server := redistest.Start(t, redistest.NoRoles...)
	rdb := server.Client(t)
	as := func(role string) *tool {
		set := []any{"ACL", "SETUSER"}
		for _, word := range strings.Fields(newTool(t, server.Addr(), "shop").ok("acl", role))[1:] {
			set = append(set, strings.Replace(word, ">change-me-"+role, ">s3cret", 1))
		}
		require.NoError(t, rdb.Do(t.Context(), set...).Err())
		return newTool(t, "delayq-"+role+"@"+server.Addr(), "shop", "DELAYQ_PASSWORD=s3cret")
	}
	producer, operator, inspector := as("producer"), as("operator"), as("inspector")

	r := producer.do("", "enqueue", "mail", "--id", "mine")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "it is not in the audit: this user of Redis has no right to that")
	require.NotContains(t, operator.ok("audit"), "mine")
	r = operator.do("", "enqueue", "mail", "--id", "ours")
	require.Zero(t, r.code, r.err)
	require.Empty(t, r.err)
	require.Contains(t, operator.ok("audit"), "ours")

	for _, args := range [][]string{{"memory"}, {"memory", "mail"}} {
		r = inspector.do("", args...)
		require.Equal(t, exitRefused, r.code, r.err)
		require.Contains(t, r.err, "add it with ACL SETUSER NAME +memory|usage")
	}
	require.NoError(t, rdb.Do(t.Context(), "ACL", "SETUSER", "delayq-inspector", "+memory|usage").Err())
	require.Contains(t, inspector.ok("memory"), "mail")
	require.Contains(t, inspector.ok("memory", "mail"), "ours")
}
