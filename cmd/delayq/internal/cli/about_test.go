package cli

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// The version, the commit and the sum are what the build left of them. Only a version that others
// can get is named to them.
func TestVersionOfEachBuild(t *testing.T) {
	t.Parallel()
	const hash = "0123456789abcdef0123456789abcdef01234567"
	vcs := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: hash}, {Key: "vcs.time", Value: "2026-11-25T21:00:00Z"}}
	for name, c := range map[string]struct {
		version, sum string
		settings     []debug.BuildSetting
		published    string
		want         versionRecord
	}{
		"nothing is known": {published: "latest", want: versionRecord{Version: "devel"}},
		"go run":           {version: "(devel)", published: "latest", want: versionRecord{Version: "devel"}},
		"go install of a tag": {version: "v0.1.0", sum: "h1:x=", published: "v0.1.0",
			want: versionRecord{Version: "v0.1.0", Sum: "h1:x="}},
		"go install of a branch before a tag": {version: "v0.0.0-20261125210000-0123456789ab", sum: "h1:x=", published: "v0.0.0-20261125210000-0123456789ab",
			want: versionRecord{Version: "v0.0.0-20261125210000-0123456789ab", Commit: "0123456789ab", Time: "2026-11-25T21:00:00Z", Sum: "h1:x="}},
		"go install of a branch after a tag": {version: "v0.1.1-0.20261125210000-0123456789ab", sum: "h1:x=", published: "v0.1.1-0.20261125210000-0123456789ab",
			want: versionRecord{Version: "v0.1.1-0.20261125210000-0123456789ab", Commit: "0123456789ab", Time: "2026-11-25T21:00:00Z", Sum: "h1:x="}},
		"a clone at a tag": {version: "v0.1.0", settings: vcs, published: "v0.1.0",
			want: versionRecord{Version: "v0.1.0", Commit: hash, Time: "2026-11-25T21:00:00Z"}},
		"a clone between tags": {version: "v0.1.1-0.20261125210000-0123456789ab", settings: vcs, published: "latest",
			want: versionRecord{Version: "v0.1.1-0.20261125210000-0123456789ab", Commit: hash, Time: "2026-11-25T21:00:00Z"}},
		"a clone at a tag with changes": {version: "v0.1.0+dirty", settings: vcs, published: "latest",
			want: versionRecord{Version: "v0.1.0+dirty", Commit: hash, Time: "2026-11-25T21:00:00Z"}},
		"a clone with changes": {version: "v0.1.1-0.20261125210000-0123456789ab+dirty", settings: vcs, published: "latest",
			want: versionRecord{Version: "v0.1.1-0.20261125210000-0123456789ab+dirty", Commit: hash, Time: "2026-11-25T21:00:00Z"}},
	} {
		c.want.Go = runtime.Version()
		info := &debug.BuildInfo{Main: debug.Module{Version: c.version, Sum: c.sum}, Settings: c.settings}
		require.Equal(t, &c.want, versionOf(info), name)
		require.Equal(t, c.published, published(info), name)
	}
}
