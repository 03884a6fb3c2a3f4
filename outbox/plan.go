package outbox

import (
	"encoding/binary"
	"errors"
)

// planFormat is the first byte of a plan. It is followed by uvarints: the span, the beginning and
// the slot of its marker, and the keys of the rows in ascending order, that is the first one, then
// the differences, each doubled, plus 1 if the row is a later one. Without rows a plan is empty.
const planFormat = 2

func encodePlan(m marker, rows []stored) []byte {
	if len(rows) == 0 {
		return []byte{}
	}
	plan, last := []byte{planFormat}, int64(0)
	for _, value := range []int64{m.span, m.began, m.slot} {
		plan = binary.AppendUvarint(plan, uint64(value))
	}
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
func decodePlan(plan []byte) (m marker, rows []stored, err error) {
	if len(plan) == 0 {
		return m, nil, nil
	}
	if plan[0] != planFormat {
		return m, nil, errPlan
	}
	plan = plan[1:]
	for _, value := range []*int64{&m.span, &m.began, &m.slot} {
		read, n := binary.Uvarint(plan)
		if n <= 0 {
			return m, nil, errPlan
		}
		*value, plan = int64(read), plan[n:]
	}
	last := int64(0)
	for len(plan) > 0 {
		step, n := binary.Uvarint(plan)
		if n <= 0 || len(rows) == mostRows {
			return m, nil, errPlan
		}
		last += int64(step >> 1)
		rows, plan = append(rows, stored{seq: last, later: step&1 == 1}), plan[n:]
	}
	return m, rows, nil
}
