package outbox

import (
	"encoding/binary"
	"errors"
)

// planFormat is the first byte of a plan. It is followed by the keys of the rows, in ascending
// order, as uvarints: the first one, then the differences. Without rows a plan is empty.
const planFormat = 1

func encodePlan(rows []stored) []byte {
	if len(rows) == 0 {
		return []byte{}
	}
	plan, last := []byte{planFormat}, int64(0)
	for i := range rows {
		plan = binary.AppendUvarint(plan, uint64(rows[i].seq-last))
		last = rows[i].seq
	}
	return plan
}

var errPlan = errors.New("outbox: the plan is damaged, or a later release has written it")

func decodePlan(plan []byte) (seqs []int64, err error) {
	if len(plan) == 0 {
		return nil, nil
	}
	if plan[0] != planFormat {
		return nil, errPlan
	}
	last := int64(0)
	for plan = plan[1:]; len(plan) > 0; {
		step, n := binary.Uvarint(plan)
		if n <= 0 || len(seqs) == mostRows {
			return nil, errPlan
		}
		last += int64(step)
		seqs, plan = append(seqs, last), plan[n:]
	}
	return seqs, nil
}
