package record

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// A Pause is one pause of a topic. The field pauses of the hash meta holds them one after the
// other, each as
//
//	<since> <until> <bytes of by> <bytes of reason> <by><reason>
type Pause struct {
	Since  int64
	Until  int64 // 0: it has no end
	By     string
	Reason string
}

// DecodePauses reads the pauses of a topic that are in effect at now, the oldest first.
func DecodePauses(text string, now int64) (list []Pause) {
	for text != "" {
		words := strings.SplitN(text, " ", 5)
		if len(words) < 5 {
			break
		}
		var n [4]int64
		for i := range n {
			n[i], _ = strconv.ParseInt(words[i], 10, 64)
		}
		since, until, by, reason, rest := n[0], n[1], int(n[2]), int(n[3]), words[4]
		if by < 0 || reason < 0 || by > len(rest) || reason > len(rest)-by {
			break
		}
		text = rest[by+reason:]
		if until == 0 || now < until {
			list = append(list, Pause{By: rest[:by], Reason: rest[by : by+reason], Since: since, Until: until})
		}
	}
	slices.SortStableFunc(list, func(a, b Pause) int { return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.By, b.By)) })
	return list
}
