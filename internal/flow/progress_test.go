package flow

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state, text         string
		want                Progress
		failure, unfinished string
	}{
		"no flow": {"-", "", Progress{}, "", ""},
		"failed": {
			"f -", `{"step":3,"topic":"sign","id":"sign-7","outcome":"d","text":"no key"}`,
			Progress{State: Failed, Cause: End{Member{"sign", "sign-7"}, "d", "no key"}}, `step "sign-7" of the topic "sign" is dead: no key`, "",
		},
		"failed in an unknown way": {
			"f g", `{"topic":"sign","id":"sign-7","outcome":"?"}`,
			Progress{State: Failed, Cause: End{Member{"sign", "sign-7"}, "?", ""}}, `step "sign-7" of the topic "sign" has not ended well`, "",
		},
		"failed, and nothing is known": {
			"f -", "", Progress{State: Failed}, "a step of the flow has failed; what is known of it cannot be read", "",
		},
		"one is missing": {
			"o i", `{"left":1,"missing":[{"topic":"a","id":"1"}]}`, Progress{State: Open, Ignore: true, Left: 1, Missing: []Member{{"a", "1"}}},
			"", `1 step has not ended by the deadline: "1" of the topic "a"`,
		},
		"some are missing": {
			"o -", `{"left":5,"missing":[{"topic":"a","id":"1"},{"topic":"b","id":"2"}]}`,
			Progress{State: Open, Left: 5, Missing: []Member{{"a", "1"}, {"b", "2"}}},
			"", `5 steps have not ended by the deadline: "1" of the topic "a", "2" of the topic "b", and others`,
		},
		"a group": {"o g", `{"left":0}`, Progress{State: Open}, "", "the group was not closed by its deadline"},
	} {
		got, err := ReadProgress(c.state, c.text)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
		if c.failure != "" {
			require.Equal(t, c.failure, got.Failure(), name)
		}
		if c.unfinished != "" {
			require.Equal(t, c.unfinished, got.Unfinished(), name)
		}
	}
	got, err := ReadProgress("f i", "{")
	require.ErrorIs(t, err, errProgress)
	require.Equal(t, Progress{State: Failed, Ignore: true}, got)
}
