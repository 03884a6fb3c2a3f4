package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// The memory of a topic is what its keys take, its error is that of the samples, and its largest
// jobs are found in whichever state they are.
func TestMemory(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	jobs := make([]delayq.NewJob, 3000)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "mail", ID: fmt.Sprintf("job-%04d", i), Payload: []byte(strings.Repeat("x", 100+i%7)), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
	}
	jobs[17].Payload = make([]byte, 200_000)
	_, err := client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
	require.NoError(t, client.Bury(t.Context(), "mail", "job-0017", "large"))
	_, err = client.Enqueue(t.Context(), "small", "one", nil)
	require.NoError(t, err)

	var r memoryRecord
	read := func(args ...string) {
		t.Helper()
		r = memoryRecord{}
		require.NoError(t, json.Unmarshal([]byte(cli.ok(append([]string{"memory", "mail", "--budget", "5000", "-o", "json"}, args...)...)), &r))
	}
	read("--samples", "1000000") // all of them: exact
	whole := r.Bytes
	require.EqualValues(t, 3000, r.Jobs)
	require.Greater(t, whole, int64(3000*100+200_000))
	require.Less(t, whole, int64(3000*1000+200_000))
	require.Equal(t, "pool", r.Keys[0].Key)
	require.Equal(t, "job-0017", r.Largest[0].ID)
	require.Equal(t, delayq.StateDead, r.Largest[0].State)
	require.InDelta(t, 200_000, r.Largest[0].PayloadSize, 200)
	require.Len(t, r.Largest, largestJobs)
	require.Equal(t, 3000, r.Examined)
	sum := int64(0)
	for _, k := range r.Keys {
		sum += k.Bytes
	}
	require.Equal(t, whole, sum)

	out := cli.ok("memory", "mail")
	require.Contains(t, out, "largest of 2,001 jobs:")
	require.Regexp(t, `memory +[0-9.]+ [KM]iB ± `, out)
	lines := strings.Split(cli.ok("memory"), "\n")
	require.Regexp(t, `^TOPIC +JOBS +MEMORY +ERROR$`, lines[0])
	require.Regexp(t, `^mail +3,000 `, lines[1])
	require.Regexp(t, `^small +1 `, lines[2])
	require.Equal(t, "mail\nsmall\n", cli.ok("memory", "-o", "id"))
	require.Equal(t, exitNotFound, cli.do("", "memory", "nosuch").code)
	require.Equal(t, exitUsage, cli.do("", "memory", "--samples", "1").code)
	require.Equal(t, exitUsage, cli.do("", "memory", "mail", "--budget", "0").code)
}

// Every key that a topic has in Redis is counted, except receipts, which expire.
func TestMemoryCountsAllKeys(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	_, err := client.Enqueue(t.Context(), "mail", "a", []byte("x"), delayq.Key("k"))
	require.NoError(t, err)
	require.NoError(t, client.Pause(t.Context(), "mail", delayq.Pause{By: "alice"}))
	require.NoError(t, client.Schedule(t.Context(), "mail", "s", delayq.Every(time.Hour), nil))
	prefix := ""
	for _, v := range cli.env {
		if rest, ok := strings.CutPrefix(v, "DELAYQ_PREFIX="); ok {
			prefix = rest
		}
	}
	counted := map[string]bool{}
	for _, key := range keysOf(prefix, "mail") {
		counted[key] = true
	}
	n := 0
	for key := range redistest.Dump(t, redistest.Shared(t), prefix) {
		if strings.Contains(key, ":{mail}:") && !strings.Contains(key, ":receipt:") && !strings.Contains(key, ":taken:") {
			require.True(t, counted[key], key)
			n++
		}
	}
	require.Greater(t, n, 5)
}
