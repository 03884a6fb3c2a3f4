package commit

import (
	"sync/atomic"
	"time"
)

const (
	// MostFlights is the maximum number of flights of a topic.
	MostFlights = 16

	// SecondFlight is the number of waiting calls at which a second flight starts however near
	// Redis is, if the latest flight carried no more.
	SecondFlight = 16

	// PerFlight is how much time of the way to Redis one more flight is worth. A flight that often
	// costs Redis about a tenth of its time.
	PerFlight = 100 * time.Microsecond

	// perJob is what Redis and its reply need for a call at most.
	perJob = 4 * time.Microsecond

	// nearestFor is how long the shortest time of a flight is remembered, and up to twice as long.
	nearestFor = 30 * time.Second
)

// flights counts the flights of a topic, and decides how many there may be at a time. A flight is
// the calls that are sent to Redis together.
//
// The farther Redis is, the more flights pay off: with a single one, a caller waits for the rest of
// a flight that it has missed, and then for its own. The nearer Redis is, the more they cost,
// because each carries fewer calls. So the number follows the link, which is the part of a flight's
// time that does not depend on the number of calls on their way.
//
// The number of callers and their rate say nothing about the link. Callers wait for their replies,
// so their number is always rate × time (Little's law), whatever limits the rate. What can be told
// apart is time that grows with the calls on their way, and time that does not. The shortest flight
// is an upper bound of the link: it keeps a slow machine or many callers from being taken for a
// long way. A number that is wrong by a factor of two costs 5 to 20 % of the rate.
type flights struct {
	most int // bound of width; 0: MostFlights

	up        int // flights, including those that have yet to gather
	gathering int // flights that have yet to gather
	air       int // calls on their way
	latest    int // calls in the flight that gathered last

	link    time.Duration
	landed  int              // flights that were measured, up to 2
	nearest [2]time.Duration // shortest time of a flight since began, and in nearestFor before it; 0: none
	began   time.Time
}

// width returns how many flights may be in the air.
func (f *flights) width() int {
	link := f.link
	for _, nearest := range f.nearest {
		if nearest > 0 {
			link = min(link, nearest)
		}
	}
	most := MostFlights
	if f.most > 0 {
		most = min(most, f.most)
	}
	return max(1, min(int(link/PerFlight), most))
}

// wants reports whether another flight should start for calls that wait. One that has yet to gather
// takes them along.
func (f *flights) wants(waiting int) bool {
	if f.gathering > 0 {
		return false
	}
	return f.up < f.width() || f.up == 1 && waiting >= max(SecondFlight, f.latest)
}

// start counts a flight that has yet to gather.
func (f *flights) start() {
	f.up++
	f.gathering++
}

// gathered counts the calls of a flight that is about to be sent. Without any, the flight is over.
// It returns the number of calls on their way.
func (f *flights) gathered(calls int) (air int) {
	f.gathering--
	if calls == 0 {
		f.up--
		return f.air
	}
	f.latest = calls
	f.air += calls
	return f.air
}

// ended counts a flight whose calls have their outcomes. It can gather again.
func (f *flights) ended(calls int) {
	f.air -= calls
	f.gathering++
}

// measured learns from a flight that Redis has answered. took is the time from sending to the
// answer, and air the number of calls that were on their way when it was sent, with its own.
func (f *flights) measured(now time.Time, took time.Duration, air int) {
	link := max(took-time.Duration(air)*perJob, 0)
	switch {
	case f.landed < 2: // the first ones connect, and would be too long for long
		f.link = link
		f.landed++
	case link < f.link: // noise only makes flights longer
		f.link += (link - f.link) / 4
	default:
		f.link += (link - f.link) / 32
	}
	if since := now.Sub(f.began); since >= nearestFor {
		f.nearest[1] = f.nearest[0]
		if since >= 2*nearestFor {
			f.nearest[1] = 0
		}
		f.nearest[0], f.began = 0, now
	}
	took = max(took, 1)
	if f.nearest[0] == 0 || took < f.nearest[0] {
		f.nearest[0] = took
	}
}

// An airspace bounds the flights of all topics of a client, because each has a connection of the
// pool while it is in the air.
type airspace struct {
	most int // half of the pool
	up   atomic.Int64
}

// enter counts the first flight of a topic, which always starts.
func (a *airspace) enter() { a.up.Add(1) }

// allows reports whether a further flight of a topic may start, and counts it.
func (a *airspace) allows() bool {
	if a.up.Add(1) <= int64(a.most) {
		return true
	}
	a.up.Add(-1)
	return false
}

// leave counts a flight that is over.
func (a *airspace) leave() { a.up.Add(-1) }

// A yielding decides whether a flight yields its processor before it gathers, so that the callers
// of the last one, who have just become runnable, come along. Otherwise a flight finds the few that
// happened to be first.
//
// A yield is expensive when other goroutines compute without a pause: each takes its whole share of
// time. After a long one there is none for a hundred times as long, so at most a hundredth of the
// time is lost. It is safe for concurrent use.
type yielding struct{ resume atomic.Int64 } // Unix ns

// enough is how many waiting calls make a flight worth sending without a yield. A flight that
// waited for still more callers would leave Redis idle meanwhile.
const enough = 32

// pays reports whether to yield when so many calls wait already.
func (y *yielding) pays(now time.Time, waiting int) bool {
	return waiting < enough && now.UnixNano() >= y.resume.Load()
}

// yielded learns from a yield that ended now. calls is how many the flight then found.
func (y *yielding) yielded(now time.Time, took time.Duration, calls int) {
	if took > 200*time.Microsecond+time.Duration(calls)*3*time.Microsecond {
		y.resume.Store(now.Add(100 * took).UnixNano())
	}
}
