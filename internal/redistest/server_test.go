package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// impatient returns a client that does not retry.
func impatient(t *testing.T, s *Server) *redis.Client {
	opt := s.Options()
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.ReadTimeout = 200 * time.Millisecond
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestKillAndRestartKeepWhatAOFHolds(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want int64
	}{
		{"none", nil, 0},
		{"aof", AOF, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := Start(t, test.args...)
			rdb := impatient(t, s)
			ctx := t.Context()
			for range 2 {
				require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
				require.NoError(t, s.Kill())
				require.Error(t, rdb.Ping(ctx).Err())
				require.NoError(t, s.Kill())
				require.NoError(t, s.Restart())
				_ = rdb.Ping(ctx) // drops the connection that the kill has closed
				require.Equal(t, test.want, rdb.Exists(ctx, "k").Val())
			}
		})
	}
}

func TestRestartOfARunningServer(t *testing.T) {
	s := Start(t)
	before := runID(t, s.Client(t))
	require.NoError(t, s.Restart())
	require.NotEqual(t, before, runID(t, s.Client(t)))
}

func TestShutdownWritesFirst(t *testing.T) {
	s := Start(t, "--save", "3600", "1")
	ctx := t.Context()
	require.NoError(t, s.Client(t).Set(ctx, "k", "v", 0).Err())
	require.NoError(t, s.Stop())
	require.NoError(t, s.Shutdown())
	require.NoError(t, s.Shutdown())
	require.FileExists(t, filepath.Join(s.Dir(), "dump.rdb"))
	require.NoError(t, s.Restart())
	require.Equal(t, "v", s.Client(t).Get(ctx, "k").Val())
}

func TestStopAndCont(t *testing.T) {
	s := Start(t)
	rdb := impatient(t, s)
	ctx := t.Context()
	for range 5 {
		require.NoError(t, rdb.Ping(ctx).Err())
		require.NoError(t, s.Stop())
		err := rdb.Ping(ctx).Err()
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		require.NoError(t, s.Cont())
		require.Eventually(t, func() bool { return rdb.Ping(ctx).Err() == nil }, startLimit, 10*time.Millisecond)
	}
	require.NoError(t, s.Kill())
	s.t = nil // the calls below must fail
	require.Error(t, s.Stop())
	require.Error(t, s.Cont())
}

func TestDebugIsAllowed(t *testing.T) {
	require.NoError(t, Shared(t).Do(t.Context(), "DEBUG", "SLEEP", "0").Err())
}

func TestStartSaysWhyItFailed(t *testing.T) {
	Need(t)
	_, err := StartE(t.TempDir(), "--nonsense", "yes")
	require.ErrorContains(t, err, "nonsense")
	_, err = StartE(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestStartTakesAnotherPort(t *testing.T) {
	Need(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()

	tries := 0
	s, err := start(t.TempDir(), func(port int, dir string) ([]string, error) {
		if tries++; tries == 1 {
			port = taken.Addr().(*net.TCPAddr).Port
		}
		return []string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--dir", dir}, nil
	})
	require.NoError(t, err)
	s.until(t)
	require.Equal(t, 2, tries)
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
}

func TestAnotherServerIsNotTakenForOurs(t *testing.T) {
	s := Start(t)
	require.NoError(t, s.answers(s.proc.cmd.Process.Pid))
	require.ErrorContains(t, s.answers(s.proc.cmd.Process.Pid+1), "another server")
}

func TestServerOutlivesTheThreadThatAskedForIt(t *testing.T) {
	Need(t)
	servers := make(chan *Server)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		s, err := StartE("")
		if err != nil {
			t.Error(err)
		}
		servers <- s
	}()
	s := <-servers
	require.NotNil(t, s)
	s.until(t)
	require.Never(t, s.proc.gone, 200*time.Millisecond, 10*time.Millisecond)
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())

	require.NoError(t, s.Close())
	require.NoDirExists(t, s.Dir())
}

// crashEnv makes the test below start servers and crash.
const crashEnv = "REDISTEST_CRASH"

func TestServersEndWithTheProcess(t *testing.T) {
	Need(t)
	if os.Getenv(crashEnv) != "" {
		s, err := sharedServer()
		require.NoError(t, err)
		c, err := StartClusterE("", 1, 0)
		require.NoError(t, err)
		fmt.Printf("started %d %s %d %s\n", s.proc.cmd.Process.Pid, s.Dir(), c.Nodes[0].proc.cmd.Process.Pid, c.dir)
		self, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, self.Kill())
		select {}
	}
	out := again(t, crashEnv+"=1")
	var pids [2]int
	var dirs [2]string
	_, err := fmt.Sscanf(out[max(0, indexOf(out, "started")):], "started %d %s %d %s", &pids[0], &dirs[0], &pids[1], &dirs[1])
	require.NoError(t, err, out)
	for i := range pids {
		require.NoError(t, poll(startLimit, func() error {
			if _, err := os.Stat(dirs[i]); err == nil {
				return fmt.Errorf("%s is still there", dirs[i])
			}
			if _, err := os.Stat(fmt.Sprintf("/proc/%d/cwd/redis.log", pids[i])); err == nil {
				return fmt.Errorf("process %d still runs", pids[i])
			}
			return nil
		}))
	}
}

func runID(t *testing.T, rdb *redis.Client) string {
	info, err := rdb.Info(t.Context(), "server").Result()
	require.NoError(t, err)
	return field(info, "run_id")
}
