package part

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	// Most is the maximum number of partitions of a generation.
	Most = 1024

	// MostGenerations is the maximum number of generations in a map, with the home.
	MostGenerations = 8

	// NameRoom is how many bytes the name of a partition may be longer than that of its topic: "#",
	// the number of a generation, ".", up to 1023, ".", and a few characters.
	NameRoom = 24
)

// Generation 0 is the home.
const Home = 0

// A Generation is partitions that were made together.
type Generation struct {
	Number int
	Parts  int
	ByKey  bool // a job belongs to a partition by its key; otherwise, and without a key, by its ID
}

// A Map lists the generations of a topic that may have jobs, the oldest first. New jobs belong to
// the last one. A topic without partitions has the map nil.
type Map []Generation

// ParseMap reads a map as Redis has it: for each generation its number, a colon, how many
// partitions it has, and k if they are by key. There is a space between them. The empty text is
// nil.
func ParseMap(text string) (Map, error) {
	m, err := parse(text)
	if err != nil || len(m) > MostGenerations {
		return nil, damaged(text)
	}
	return m, nil
}

// ParsePast reads generations that have left the map, the oldest first: each is written as in a
// map, and followed by an @ and when it left, in Unix ms.
func ParsePast(text string) (Map, error) {
	words := strings.Fields(text)
	for i, word := range words {
		words[i], _, _ = strings.Cut(word, "@")
	}
	return parse(strings.Join(words, " "))
}

func damaged(text string) error {
	return fmt.Errorf("delayq: the map of partitions is damaged: %.200q", text)
}

func parse(text string) (m Map, err error) {
	for _, word := range strings.Fields(text) {
		number, parts, ok := strings.Cut(word, ":")
		parts, byKey := strings.CutSuffix(parts, "k")
		g := Generation{ByKey: byKey}
		var err, err2 error
		g.Number, err = strconv.Atoi(number)
		g.Parts, err2 = strconv.Atoi(parts)
		if !ok || err != nil || err2 != nil || !m.takes(g) {
			return nil, damaged(text)
		}
		m = append(m, g)
	}
	return m, nil
}

// takes reports whether a generation can follow those of the map.
func (m Map) takes(g Generation) bool {
	switch {
	case g.Number < 0, g.Parts < 1, g.Parts > Most:
		return false
	case g.Number == Home && (g.Parts != 1 || g.ByKey):
		return false
	}
	return len(m) == 0 || g.Number > m[len(m)-1].Number
}

func (m Map) String() string {
	words := make([]string, len(m))
	for i, g := range m {
		words[i] = g.String()
	}
	return strings.Join(words, " ")
}

// String returns a generation as the map has it.
func (g Generation) String() string {
	text := strconv.Itoa(g.Number) + ":" + strconv.Itoa(g.Parts)
	if g.ByKey {
		text += "k"
	}
	return text
}

// Open returns the generation that new jobs belong to: that of the home if there are no partitions.
func (m Map) Open() Generation {
	if len(m) == 0 {
		return Generation{Parts: 1}
	}
	return m[len(m)-1]
}

// KeysStay reports whether the places of a generation go on taking the new jobs of the keys that
// they have when they are closed: all jobs of a key were there, and in the next generation they are
// together, too.
func (m Map) KeysStay(number int) bool {
	i := slices.IndexFunc(m, func(g Generation) bool { return g.Number == number })
	return i >= 0 && i+1 < len(m) && m[i+1].ByKey && (m[i].ByKey || number == Home)
}

// Places returns the topics of all generations, the home first whether it is in the map or not.
func (m Map) Places(topic string) []string {
	list := []string{topic}
	for _, g := range m {
		if g.Number != Home {
			list = append(list, g.Names(topic)...)
		}
	}
	return list
}

// Index returns the index of the partition to which a job belongs.
func (g Generation) Index(id, key string) int {
	if g.Parts == 1 {
		return 0
	}
	if g.ByKey && key != "" {
		id = key
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	return int(h.Sum64() % uint64(g.Parts))
}

// Name returns the name of a partition of a topic.
func (g Generation) Name(topic string, i int) string { return g.Names(topic)[i] }

// Names returns the names of all partitions of a topic. Partition i of n is in the i-th of n equal
// parts of the slots of a Cluster, so that a Cluster whose nodes have equal parts has as many on
// each node, if n is a multiple of their number.
func (g Generation) Names(topic string) []string {
	if g.Number == Home {
		return []string{topic}
	}
	key := namesKey{topic, g.Number, g.Parts}
	if list := known.get(key); list != nil {
		return list
	}
	list, crcs, left := make([]string, g.Parts), make([]uint16, g.Parts), make([]int, g.Parts)
	for i := range list {
		list[i] = topic + "#" + strconv.Itoa(g.Number) + "." + strconv.Itoa(i) + "."
		crcs[i], left[i] = crcOf(0, list[i]), i
	}
	for x := int64(0); len(left) > 0; x++ {
		last := strconv.FormatInt(x, 36)
		others := left[:0]
		for _, i := range left {
			if rangeOf(crcOf(crcs[i], last), g.Parts) == i {
				list[i] += last
			} else {
				others = append(others, i)
			}
		}
		left = others
	}
	known.put(key, list)
	return list
}

// HomeOf returns the topic whose partition has a name, or the name itself.
func HomeOf(name string) string {
	home, _, _ := strings.Cut(name, "#")
	return home
}

// IsName reports whether a name is that of a partition, and of which topic.
func IsName(name string) (topic string, is bool) {
	topic, _, is = strings.Cut(name, "#")
	return topic, is
}

// Split reads the name of a partition: its topic, and the numbers of its generation and of itself.
func Split(name string) (topic string, generation, index int, ok bool) {
	topic, rest, is := strings.Cut(name, "#")
	words := strings.Split(rest, ".")
	if !is || len(words) != 3 {
		return name, 0, 0, false
	}
	generation, err := strconv.Atoi(words[0])
	index, err2 := strconv.Atoi(words[1])
	return topic, generation, index, err == nil && err2 == nil && generation > 0 && index >= 0
}

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// Range returns in which of n equal parts of the slots a hash tag is, from 0 on. Its slot is the
// CRC of the specification of Redis Cluster (XMODEM), modulo their number.
func Range(tag string, n int) int { return rangeOf(crcOf(0, tag), n) }

func rangeOf(crc uint16, n int) int { return int(crc) % slots * n / slots }

// crcOf returns the CRC of a text with that CRC, and of another one after it.
func crcOf(crc uint16, text string) uint16 {
	for i := range len(text) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^text[i]]
	}
	return crc
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// A namesKey says whose names a cache has.
type namesKey struct {
	topic             string
	generation, parts int
}

// names remembers the names of a few generations: 1,024 of them take some ms to find.
type names struct {
	mu  sync.Mutex
	all map[namesKey][]string
}

// mostNames is the number of generations whose names are remembered.
const mostNames = 256

var known = names{all: make(map[namesKey][]string)}

func (n *names) get(key namesKey) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[key]
}

func (n *names) put(key namesKey, list []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.all) >= mostNames {
		for one := range n.all { // any of them
			delete(n.all, one)
			break
		}
	}
	n.all[key] = slices.Clip(list)
}
