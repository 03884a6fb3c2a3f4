package prom

import (
	"maps"
	"strings"
	"sync"
)

// Other is the value of the label topic that stands for all topics beyond [MaxTopics].
const Other = "_other"

// A folding decides which topics have series of their own.
type folding struct {
	most   int
	rename func(topic string) string // nil: topics are their own labels
	own    map[string]bool           // labels that have series of their own, Other excepted
}

// name returns the label that a topic would have if there were no limit.
func (f *folding) name(topic string) (label string) {
	label = topic
	if f.rename != nil {
		label = renamed(f.rename, topic)
	}
	if label = strings.ToValidUTF8(label, "\uFFFD"); label == "" {
		label = Other
	}
	return label
}

// renamed calls the function of a user. If that panics, the topic is folded.
func renamed(f func(string) string, topic string) (label string) {
	defer func() {
		if recover() != nil {
			label = Other
		}
	}()
	return f(topic)
}

// claim returns the label under which name is counted: name itself while there is room.
func (f *folding) claim(name string) string {
	switch {
	case name == Other, f.own[name]:
		return name
	case len(f.own) >= f.most:
		return Other
	}
	if f.own == nil {
		f.own = make(map[string]bool)
	}
	f.own[name] = true
	return name
}

// release makes room: only those labels keep their series that are still in use.
func (f *folding) release(used map[string]bool) {
	maps.DeleteFunc(f.own, func(name string, _ bool) bool { return !used[name] })
}

// A sharedFolding is a folding for concurrent use.
type sharedFolding struct {
	mu sync.Mutex
	folding
}

func (f *sharedFolding) label(topic string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claim(f.name(topic))
}

// A table has the series of each topic. Reading it takes no lock, because every event does.
type table[S any] struct {
	label  func(topic string) string
	create func(label string) *S
	most   int // of topics that are remembered

	topics sync.Map // topic to *S
	mu     sync.Mutex
	known  int // topics
	labels map[string]*S
}

// get returns the series of a topic, and makes them if they are new.
func (t *table[S]) get(topic string) *S {
	if s, ok := t.topics.Load(topic); ok {
		return s.(*S)
	}
	return t.add(topic)
}

// peek returns the series of a topic, or those of Other if the topic has none yet.
func (t *table[S]) peek(topic string) *S {
	if s, ok := t.topics.Load(topic); ok {
		return s.(*S)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.labelled(Other)
}

// add makes the series of a topic, and remembers them unless there are too many. An event of a
// topic that is not remembered costs a call of the function of [TopicLabel].
func (t *table[S]) add(topic string) *S {
	label := t.label(topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.labelled(label)
	if t.known < t.most {
		if _, there := t.topics.LoadOrStore(strings.Clone(topic), s); !there {
			t.known++
		}
	}
	return s
}

// labelled returns the series of a label. The caller holds the lock.
func (t *table[S]) labelled(label string) *S {
	s := t.labels[label]
	if s == nil {
		s = t.create(label)
		if t.labels == nil {
			t.labels = make(map[string]*S)
		}
		t.labels[label] = s
	}
	return s
}
