package delayq

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A call settles jobs of one verb only: an ack that carries a job to be returned would lose it. (It did, when the rows that stay
// were moved to the front while the first one's verb was still being compared with.)
func TestGatherNeverMixesVerbs(t *testing.T) {
	verbs := []verb{verbAck, verbReturn, verbAck, verbReturn, verbRetry, verbReturn, verbAck, verbBury, verbRetry}
	server := &topicServer{}
	for _, v := range verbs {
		server.rows = append(server.rows, row{verb: v})
	}
	var got []verb
	for list := server.gather(nil, 1); len(list) > 0; list = server.gather(list[:0], 1) {
		for _, r := range list {
			require.Equal(t, list[0].verb, r.verb)
			got = append(got, r.verb)
		}
	}
	slices.Sort(verbs)
	slices.Sort(got)
	require.Equal(t, verbs, got)
}

// What a call that was not carried out has left is told by the first loop: the second one does not come back for a few.
func TestWhatIsPutBackIsTold(t *testing.T) {
	server := &topicServer{settle: make(chan struct{}, 1)}
	server.putBack([]row{{verb: verbAck}})
	require.Len(t, server.settle, 1)
	require.Empty(t, server.gather(nil, settlePile))
	require.Len(t, server.gather(nil, 1), 1)
}

// Jobs that are given back go to the head of ready, one call after the other: the last ones first.
func TestGatherGivesBackFromTheEnd(t *testing.T) {
	const jobs = 2*settleLimit + 7
	server := &topicServer{}
	for i := range jobs {
		server.rows = append(server.rows, row{verb: verbReturn, attempts: i}, row{verb: verbAck})
	}
	require.Empty(t, server.gather(nil, settlePile), "for the first loop alone")
	want := jobs
	for len(server.rows) > 0 {
		list := server.gather(nil, 1)
		if list[0].verb != verbReturn {
			continue
		}
		want -= len(list)
		for i, r := range list {
			require.Equal(t, want+i, r.attempts)
		}
	}
	require.Zero(t, want)
}
