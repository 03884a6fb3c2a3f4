package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever a file of users has, it is read or refused with a line, and no refusal shows what may be
// a password.
func FuzzUsers(f *testing.F) {
	hash := "$2a$10$7EqJtq98hPqEX7fNZaFWoOhi5BWUv2gUn0kZK1Bjd0nZ6d3v9pqqK"
	for _, seed := range []string{
		"ann:" + hash, "ann:" + hash + ":read\nbob:" + hash, "# no one\n", "ann:correct-horse-battery", ":" + hash, "ann:" + hash + ":write", "ann:" + hash + "\nann:" + hash, "ann:$2a$31$", "\x00:\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "users")
		require.NoError(t, os.WriteFile(path, text, 0o600))
		all, err := readUsers(path)
		if err != nil {
			require.Equal(t, exitConfig, codeOf(err))
			require.NotContains(t, err.Error(), "correct-horse-battery")
			return
		}
		require.NotEmpty(t, all)
		for name, user := range all {
			require.NotEmpty(t, name)
			require.NotEmpty(t, user.hash)
		}
	})
}
