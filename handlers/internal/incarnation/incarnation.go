// Package incarnation names incarnations of jobs to the outside.
package incarnation

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/delayq/delayq"
)

// Name returns a name for the incarnation of a job: 32 hexadecimal digits of a SHA-256 over topic,
// ID and nonce, each with its length in front. All attempts of one incarnation have the same name.
// A job that is enqueued later with the same ID has another one. An ID can have any bytes, and the
// name shows none of them.
func Name(job *delayq.Job) string {
	var text []byte
	for _, part := range []string{job.Topic, job.ID, job.Nonce()} {
		text = binary.BigEndian.AppendUint32(text, uint32(len(part)))
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
