package schedule

import (
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"strconv"

	"github.com/delayq/delayq/internal/record"
)

// A Job is the job of a slot, as the script that fires expects it.
type Job struct {
	Nonce      string // hexadecimal
	Head, Tail string // of the record
	Due        int64
}

// JobAt returns the job of a slot. Its nonce is derived from the definition and the slot, so a call
// that was interrupted and its repetition store the same job.
func (s *Schedule) JobAt(name string, slot int64) (Job, error) {
	h := fnv.New64a()
	// Write of a hash never fails.
	_, _ = h.Write([]byte(s.Nonce + " " + name + " " + strconv.FormatInt(slot, 10)))
	sum := mix(h.Sum64())
	o := s.Job
	o.Scheduled = true
	due := slot + o.DueIn
	if s.Jitter > 0 {
		due += int64(mix(sum) % uint64(s.Jitter+1))
	}
	o.DueAt, o.DueIn = min(due, record.MaxTime), 0
	nonce := record.Nonce(binary.LittleEndian.AppendUint64(nil, sum))
	head, tail, err := record.Encode(nonce, &o, s.Payload)
	return Job{hex.EncodeToString(nonce[:]), head, tail, o.DueAt}, err
}

// mix spreads a hash over all 64 bits. It is the last step of SplitMix64 (Steele, Lea and Flood).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
