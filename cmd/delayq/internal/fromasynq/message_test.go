package fromasynq

import "testing"

// Any bytes are a record, or an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("\n\x04work\x12\x01x(\x19"))
	f.Add([]byte("z\x06\n\x01a\x12\x01b"))
	f.Add([]byte{0xff})
	f.Add([]byte{0x40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, record []byte) {
		task := new(Task)
		if err := task.decode(record); err == nil && (task.Timeout < 0 || task.Retention < 0 || len(task.Payload) > len(record)) {
			t.Fatalf("%q: %+v", record, task)
		}
	})
}
