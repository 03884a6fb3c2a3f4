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
	for list := server.gather(nil); len(list) > 0; list = server.gather(list[:0]) {
		for _, r := range list {
			require.Equal(t, list[0].verb, r.verb)
			got = append(got, r.verb)
		}
	}
	slices.Sort(verbs)
	slices.Sort(got)
	require.Equal(t, verbs, got)
}
