package outbox

import (
	"encoding/binary"
	"errors"
)

// planFormat is the first byte of a plan. It is followed by the keys of the rows as uvarints, in
// ascending order: the first one, then the differences, each doubled, plus 1 if the row is a later
// one. Without rows a plan is empty.
const planFormat = 2

func encodePlan(rows []stored) []byte {
	if len(rows) == 0 {
		return []byte{}
	}
	plan, last := []byte{planFormat}, int64(0)
	for i := range rows {
		step := uint64(rows[i].seq-last) << 1
		if rows[i].later {
			step++
		}
		plan, last = binary.AppendUvarint(plan, step), rows[i].seq
	}
	return plan
}

var errPlan = errors.New("outbox: the plan is damaged, or another release has written it")

// decodePlan returns rows that have nothing but their keys.
func decodePlan(plan []byte) (rows []stored, err error) {
	if len(plan) == 0 {
		return nil, nil
	}
	if plan[0] != planFormat {
		return nil, errPlan
	}
	last := int64(0)
	for plan = plan[1:]; len(plan) > 0; {
		step, n := binary.Uvarint(plan)
		if n <= 0 || len(rows) == mostRows {
			return nil, errPlan
		}
		last += int64(step >> 1)
		rows, plan = append(rows, stored{seq: last, later: step&1 == 1}), plan[n:]
	}
	return rows, nil
}
