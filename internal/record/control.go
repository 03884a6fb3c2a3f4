package record

import (
	"strconv"
	"strings"
)

// A Message is a message on the control channel. Scripts publish it as
//
//	<verb> <fence> <length of the topic in bytes> <topic><job ID>
type Message struct {
	Verb  string // wake, resume, cancel, replace, or unknown to this release
	Fence string // of the run; 0: the message is about no run
	Topic string
	Job   string // ID; empty: the message is about no job
}

// Encode returns the text of a message.
func (m Message) Encode() string {
	fence := m.Fence
	if fence == "" {
		fence = "0"
	}
	return m.Verb + " " + fence + " " + strconv.Itoa(len(m.Topic)) + " " + m.Topic + m.Job
}

// DecodeMessage reads a message.
func DecodeMessage(text string) (m Message, ok bool) {
	part := strings.SplitN(text, " ", 4)
	if len(part) != 4 {
		return m, false
	}
	n, err := strconv.Atoi(part[2])
	if err != nil || n < 0 || n > len(part[3]) {
		return m, false
	}
	return Message{Verb: part[0], Fence: part[1], Topic: part[3][:n], Job: part[3][n:]}, true
}
