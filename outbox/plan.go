package outbox

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strconv"
)

// planFormat is the first byte of a plan. It is followed by uvarints: the span, the beginning and
// the slot of its marker, and the keys of the rows in ascending order, that is the first one, then
// the differences, each doubled, plus 1 if the row is a later one. Without rows a plan is empty.
//
// The last key is the seal of the plan, which is greater than the key of any row. The release that
// had no seals takes it for the key of a row that is not there.
const planFormat = 2

// sealed is the least seal.
const sealed = 1 << 62

// newSeal returns a random seal.
func newSeal() int64 { return sealed + rand.Int64N(sealed) }

// tag returns a seal as the tag of its plan.
func tag(seal int64) string {
	if seal == 0 {
		return ""
	}
	return strconv.FormatInt(seal-sealed, 36)
}

func encodePlan(m marker, rows []stored, seal int64) []byte {
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
	return binary.AppendUvarint(plan, uint64(seal-last)<<1)
}

var errPlan = errors.New("outbox: the plan is damaged, or another release has written it")

// decodePlan returns rows that have nothing but their keys.
func decodePlan(plan []byte) (m marker, rows []stored, seal int64, err error) {
	if len(plan) == 0 {
		return m, nil, 0, nil
	}
	if plan[0] != planFormat {
		return m, nil, 0, errPlan
	}
	plan = plan[1:]
	for _, value := range []*int64{&m.span, &m.began, &m.slot} {
		read, n := binary.Uvarint(plan)
		if n <= 0 {
			return m, nil, 0, errPlan
		}
		*value, plan = int64(read), plan[n:]
	}
	last := int64(0)
	for len(plan) > 0 {
		step, n := binary.Uvarint(plan)
		if n <= 0 || seal != 0 {
			return m, nil, 0, errPlan
		}
		plan = plan[n:]
		if last += int64(step >> 1); last >= sealed {
			seal = last
			continue
		}
		if len(rows) == mostListed {
			return m, nil, 0, errPlan
		}
		rows = append(rows, stored{seq: last, later: step&1 == 1})
	}
	return m, rows, seal, nil
}
