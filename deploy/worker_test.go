package deploy_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const unitFile = "delayq-worker.service"

// unit returns the settings of the service, without comments.
func unit(t *testing.T) map[string]string {
	t.Helper()
	settings := make(map[string]string)
	for _, line := range strings.Split(file(t, unitFile), "\n") {
		if name, value, found := strings.Cut(line, "="); found && !strings.HasPrefix(line, "#") {
			if name == "SystemCallFilter" && settings[name] != "" { // each line adds to those before
				value = settings[name] + "; " + value
			} else {
				require.NotContains(t, settings, name)
			}
			settings[name] = value
		}
	}
	return settings
}

// flagsExist requires that docs/cli.md, which is what --help says, has the flags of a call.
func flagsExist(t *testing.T, call string) {
	t.Helper()
	cli := file(t, "../docs/cli.md")
	words := strings.Fields(call)
	_, section, found := strings.Cut(cli, "\n### delayqd "+words[0]+"\n")
	require.True(t, found, call)
	section, _, _ = strings.Cut(section, "\n### ")
	for _, flag := range words[1:] {
		if strings.HasPrefix(flag, "--") {
			require.Contains(t, section, " "+flag+" ", call)
		}
	}
}

// The service and the image call the worker as it is, and the service waits for its drain.
func TestWorkerIsCalledAsItIs(t *testing.T) {
	s := unit(t)
	call, found := strings.CutPrefix(s["ExecStart"], "/usr/local/bin/delayqd ")
	require.True(t, found)
	flagsExist(t, call)
	call = regexp.MustCompile(`(?m)^#     (worker --.*)$`).FindStringSubmatch(file(t, "Dockerfile"))[1]
	flagsExist(t, call)

	require.Equal(t, "/bin/kill -HUP $MAINPID", s["ExecReload"])
	require.Contains(t, file(t, "../docs/cli.md"), "SIGHUP loads the file anew.")
	stop, err := time.ParseDuration(s["TimeoutStopSec"] + "s")
	require.NoError(t, err)
	drain := regexp.MustCompile(`drain: (\w+) +# for running jobs after SIGTERM`).FindStringSubmatch(file(t, "../docs/worker.md"))
	require.NotNil(t, drain)
	grace := regexp.MustCompile(`grace: (\w+) +# from SIGTERM to SIGKILL`).FindStringSubmatch(file(t, "../docs/worker.md"))
	require.NotNil(t, grace)
	require.Contains(t, file(t, unitFile), "# drain ("+drain[1]+" unless")
	require.Contains(t, file(t, unitFile), "commands ("+grace[1]+")")
	a, err := time.ParseDuration(drain[1])
	require.NoError(t, err)
	b, err := time.ParseDuration(grace[1])
	require.NoError(t, err)
	require.Greater(t, stop, a+b)
	require.Equal(t, "mixed", s["KillMode"], "commands must not get the SIGTERM of the worker")
	// The user whom the comments create is that of the service, and its group may read the file.
	require.Contains(t, file(t, unitFile), "\n#   useradd --system --user-group --shell /usr/sbin/nologin "+s["User"]+"\n")
	require.Contains(t, file(t, unitFile), "\n#   install -m 640 -g "+s["Group"]+" worker.yaml /etc/delayq/worker.yaml\n")
	require.Contains(t, s["ExecStart"], " /etc/delayq/worker.yaml")
	for name, want := range map[string]string{"User": "delayq", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": ""} {
		require.Equal(t, want, s[name], name)
	}
}

// systemd accepts the service.
func TestServiceIsValid(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not in the PATH")
	}
	// It wants the program to exist.
	text := strings.Replace(file(t, unitFile), "/usr/local/bin/delayqd ", "/bin/true ", 1)
	path := filepath.Join(t.TempDir(), unitFile)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	out, err := exec.CommandContext(t.Context(), tool, "verify", "--man=no", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), unitFile+":", "no warning")
}

// The image is built with a command that makes a static program, and that checks a worker's file.
func TestBuildOfTheImageIsStatic(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles everything without cgo")
	}
	const output = " -o /delayqd "
	build := regexp.MustCompile(`(?m)^RUN (.*)$`).FindStringSubmatch(file(t, "Dockerfile"))[1]
	require.Contains(t, build, output)
	require.Contains(t, file(t, "Dockerfile"), "COPY --from=build /delayqd /delayqd\nENTRYPOINT [\"/delayqd\"]\n")
	program := filepath.Join(t.TempDir(), "delayq")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(build, output, ` -o "$OUTPUT" `, 1))
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "OUTPUT="+program)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if binary, err := elf.Open(program); err == nil { // on Linux
		defer binary.Close()
		for _, part := range binary.Progs {
			require.NotEqual(t, elf.PT_INTERP, part.Type, "it needs a dynamic linker")
		}
	}
	config := filepath.Join(t.TempDir(), "worker.yaml")
	require.NoError(t, os.WriteFile(config, []byte("topics:\n  true:\n    command: {argv: [/bin/true]}\n"), 0o600))
	cmd = exec.CommandContext(t.Context(), program, "worker", "--check", "--config", config)
	cmd.Env = []string{}
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The sandbox of the service is as tight as systemd can say without having started it, and nothing
// of it is lost unnoticed.
func TestServiceIsASandbox(t *testing.T) {
	s := unit(t)
	require.Equal(t, "@system-service; ~@privileged @resources; @chown", s["SystemCallFilter"])
	for name, want := range map[string]string{
		"PrivateUsers": "yes", "ProcSubset": "pid", "MemoryMax": "1G", "TasksMax": "512", "Restart": "on-failure", "RestartPreventExitStatus": "78", "StartLimitIntervalSec": "0",
	} {
		require.Equal(t, want, s[name], name)
	}
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not in the PATH")
	}
	out, err := exec.CommandContext(t.Context(), tool, "security", "--offline=true", "--threshold=15", unitFile).CombinedOutput() // in tenths
	require.NoError(t, err, "%s", out)
}
