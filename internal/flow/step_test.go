package flow

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

var home = Name{"album", "done"}

// graph returns steps of which each has the number of its place as its ID, and waits for those of
// its list.
func graph(after ...[]int) (steps []Step) {
	for n, list := range after {
		steps = append(steps, Step{Name: Name{"step", strconv.Itoa(n)}, After: list})
	}
	Link(steps)
	return steps
}

func TestLink(t *testing.T) {
	t.Parallel()
	steps := graph(nil, []int{0, 0}, []int{1, 0, 1})
	require.Equal(t, []int{0}, steps[1].After)
	require.Equal(t, []int{0, 1}, steps[2].After)
	require.Equal(t, []int{1, 2}, steps[0].Before)
	require.Equal(t, []int{2}, steps[1].Before)
	require.Empty(t, steps[2].Before)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	twice := graph(nil, nil)
	twice[1].ID = "0"
	own := graph(nil)
	own[0].Name = home
	edges := make([][]int, 300)
	for n := range edges {
		for before := range n {
			edges[n] = append(edges[n], before)
		}
	}
	for name, c := range map[string]struct {
		steps []Step
		want  string
	}{
		"a chain":       {graph(nil, []int{0}, []int{1}), ""},
		"a diamond":     {graph(nil, []int{0}, []int{0}, []int{1, 2}), ""},
		"backwards":     {graph([]int{1}, []int{2}, nil), ""},
		"none":          {nil, "no steps"},
		"too many":      {graph(make([][]int, MaxSteps+1)...), "1001 steps, at most 1000 are allowed"},
		"many":          {graph(make([][]int, MaxSteps)...), ""},
		"itself":        {graph([]int{0}), `steps wait for each other: step 0 (topic "step" job "0") waits for step 0`},
		"a circle":      {graph(nil, []int{0, 2}, []int{1}), `step 1 (topic "step" job "1") waits for step 2 (topic "step" job "2") waits for step 1`},
		"a long circle": {graph([]int{6}, []int{0}, []int{1}, []int{2}, []int{3}, []int{4}, []int{5}), "… waits for step 0"},
		"twice":         {twice, `step 1, topic "step" job "0", is in the flow already`},
		"the last step": {own, `step 0, topic "album" job "done", is the last step itself`},
		"edges":         {graph(edges...), "the steps wait for 44850 others, at most 20000 are allowed"},
	} {
		errs := Check(home, c.steps)
		if c.want == "" {
			require.Empty(t, errs, name)
			continue
		}
		require.Len(t, errs, 1, name)
		require.ErrorContains(t, errs[0], c.want, name)
	}
}

// What circleOf returns is one: each waits for the next.
func TestCircle(t *testing.T) {
	t.Parallel()
	steps := graph(nil, []int{0}, []int{1, 5}, []int{2}, []int{0, 3}, []int{4})
	circle := circleOf(steps)
	require.Len(t, circle, 4)
	for i, n := range circle {
		require.Contains(t, steps[n].After, circle[(i+1)%len(circle)])
	}
}

func TestDefinition(t *testing.T) {
	t.Parallel()
	for _, s := range []Step{
		{Name: Name{"t", "a:1\x00"}},
		{Name: Name{"t", "b"}, Ignore: true, After: []int{0, 999}, Before: []int{3}},
	} {
		text := s.Definition()
		got, err := ReadDefinition(text)
		require.NoError(t, err)
		require.Equal(t, s, got)
		for cut := range len(text) {
			_, err := ReadDefinition(text[:cut])
			require.Error(t, err, text[:cut])
		}
	}
	step := Step{Name: Name{"t", "b"}, Ignore: true, After: []int{10}}
	require.Equal(t, "i1:t1:b8:0000000a0:", step.Definition())
	for _, bad := range []string{"", "x1:t1:b0:0:", "-1:t1:b3:000", "-1:t1:b8:0000000z0:", "-1:t1:b0:7:0000000"} {
		_, err := ReadDefinition(bad)
		require.ErrorIs(t, err, errDefinition, bad)
	}
}

// Only words by which a script starts a flow are taken for them.
func TestCheckWords(t *testing.T) {
	t.Parallel()
	steps := graph(nil, []int{0})
	words := func() []any {
		return []any{"12345678", "-", steps[0].Definition(), "0", "", steps[1].Definition(), "1", "row 1", "topic", "row 0", "2", "1"}
	}
	require.NoError(t, CheckWords(words()))
	for name, damage := range map[string]func(w []any) []any{
		"none":           func([]any) []any { return nil },
		"no steps":       func(w []any) []any { return []any{w[0], w[1], "0", "0"} },
		"no number":      func(w []any) []any { w[11] = "one"; return w },
		"many bundles":   func(w []any) []any { w[11] = "2"; return w },
		"row at once":    func(w []any) []any { w[4] = "row 0"; return w },
		"no row":         func(w []any) []any { w[7] = ""; return w },
		"one is missing": func(w []any) []any { return w[:len(w)-1] },
		"one too many":   func(w []any) []any { return append(w, "2") },
		"name":           func(w []any) []any { w[0] = "1234567"; return w },
		"definition":     func(w []any) []any { w[5] = "?"; return w },
		"waits":          func(w []any) []any { w[6] = "2"; return w },
		"number":         func(w []any) []any { w[10] = "3"; return w },
	} {
		require.Error(t, CheckWords(damage(words())), name)
	}
}
