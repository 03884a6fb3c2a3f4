package explain

import "time"

// Look is how many entries of ready are searched for the job.
const Look = 10_000

// Facts are what decides whether a job runs. Times are by Redis's clock.
type Facts struct {
	ID      string
	At      time.Time // when the job was read
	Job     *Job      // nil: there is no such job
	Finding string    // the damage that concerns the job; empty: none
	Heir    *Heir     // the successor of the job; nil: there is none
	Free    time.Time // when the ID can be used again, if no unfinished job has it and it is closed
	Waiters int       // clients that wait for the job
	Flow    *Flow     // that the job is a step of; nil: none
	Part    *Part     // that has the job; nil: the topic has no partitions

	Pauses []Pause
	Hold   Hold
	Limits Limits    // of the topic; of a partition, its share of them
	Next   time.Time // start that the rate of the topic allows; zero: now

	Ahead  int64     // entries of ready in front of the job; -1: unknown
	Whole  bool      // Ahead is -1 only if the job is not there
	Rank   int64     // in the bucket
	Leased int64     // running jobs of the topic; of a partition, its own
	Gather time.Time // until when jobs of all keys are gathered

	// Handlers of cancelled or replaced jobs that may still run, and count for the limits: of the
	// topic, and of its key, of which they are in KeyRunning too.
	Stragglers, KeyStragglers int64

	Before     int64     // jobs in front of it in the lane of its key; -1: it is in no lane
	Keys       int64     // in the round
	KeyPaused  bool      // its key is paused
	KeyHeld    time.Time // the end of the hold of its key
	Parked     time.Time // when its key gets a turn, because one of its limits is reached
	KeyRunning int64     // jobs of its key that count for its limits; -1: unknown
	Ration     Limits    // the limits in force for its key
	Blocker    string    // the job that its key waits for; empty: none
	Blocked    time.Time // the due time of that job; zero: it is dead

	Beat     time.Duration // how often servers send heartbeats
	Takers   []Server      // live servers of the topic
	Draining []Server      // those that take no more jobs
	Others   int           // live servers of other topics
	Last     *Server       // the last one of the topic that is gone

	Acts  []Act             // in the audit about this job, the newest first
	Redis map[string]string // what INFO says
}

// A Job is what is known of the job.
type Job struct {
	State      string
	Due        time.Time
	DueReason  string
	Attempt    int
	Snoozes    int
	Stage      int
	Stages     int
	Revived    bool // its expiry no longer applies
	EnqueuedAt time.Time
	LeaseEnd   time.Time
	BuriedAt   time.Time
	FinishedAt time.Time
	KeptUntil  time.Time
	ExpireAt   time.Time
	LastError  *Failure
	Silence    time.Duration // for which a burst of calls puts it off
	BurstBegan time.Time     // its first call
	BurstEnds  time.Time     // the latest time to which it puts the job off
	Progress   *Progress     // nil: none
	Steps      []string      // those that are over, in the order of their ends
	Later      int           // the format version of its record, if a later release has stored it; else 0
}

// An Heir is the successor of a running job.
type Heir struct {
	Due   time.Time
	Bytes int64 // of its record
}

// A Failure is the newest error of the job.
type Failure struct {
	At            time.Time
	Kind, Message string
}

// A Pause of the topic.
type Pause struct {
	By, Because  string
	Since, Until time.Time
}

// A Hold of the topic. Its end is zero if there is none.
type Hold struct {
	By, Because string
	Until       time.Time
}

// Limits of a topic or a key: how many jobs run at a time (0: any number), and the text of the rate
// of their starts (empty: none).
type Limits struct {
	Running int
	Rate    string
}

// A Server is what the last heartbeat of a server says of the topic.
type Server struct {
	ID, Host    string
	SeenAt      time.Time
	Workers     int
	Capacity    int // jobs that run at a time; a batch has several
	Running     int
	Pool        string // of the topic; empty: none
	PoolSize    int    // workers of the pool
	PoolRunning int    // of them busy
	Taken       int64
	Within      time.Duration // in which they were taken; 0: unknown
	Promotes    bool          // it says how long ago it tried to promote
	PromoteAge  time.Duration
	Longest     []Run
}

// A Run is a job that has been running for so long.
type Run struct {
	ID  string
	For time.Duration
}

// An Act is an entry of the audit.
type Act struct {
	By, Action string
	At         time.Time
	Cancels    bool // it has certainly cancelled a job
}

// A Code says what kind of reason a Reason is, as delayq.ReasonCode does.
type Code string

// The codes of reasons. The comments of delayq.ReasonCode say what they mean.
const (
	NotFound         Code = "not_found"
	Cancelled        Code = "cancelled"
	Tomb             Code = "tomb"
	DueLater         Code = "due_later"
	BackingOff       Code = "backing_off"
	Snoozed          Code = "snoozed"
	Debounced        Code = "debounced"
	FlowOpen         Code = "flow_open"
	Expired          Code = "expired"
	LaterRelease     Code = "later_release"
	Orphan           Code = "orphan"
	RedisCannotWrite Code = "redis_cannot_write"
	TopicPaused      Code = "topic_paused"
	TopicHeld        Code = "topic_held"
	TopicLimit       Code = "topic_limit"
	TopicRate        Code = "topic_rate"
	NoServer         Code = "no_server"
	Draining         Code = "draining"
	ServerSilent     Code = "server_silent"
	NotTaken         Code = "not_taken"
	NotPromoted      Code = "not_promoted"
	AllBusy          Code = "all_busy"
	PoolBusy         Code = "pool_busy"
	KeyHeld          Code = "key_held"
	KeyPaused        Code = "key_paused"
	KeyLimit         Code = "key_limit"
	KeyRate          Code = "key_rate"
	KeyBlocked       Code = "key_blocked"
	Gathering        Code = "gathering"
	Behind           Code = "behind"
	KeyBehind        Code = "key_behind"
	Running          Code = "running"
	Successor        Code = "successor"
	LeaseOver        Code = "lease_over"
	Dead             Code = "dead"
	Done             Code = "done"
)

// A Reason is one reason. delayq.Reason describes the fields.
type Reason struct {
	Code Code
	Text string

	Since, Until time.Time
	Latest       time.Time
	By           string
	Because      string
	Action       string
	Attempt      int
	Snoozes      int
	Stage        int
	Stages       int
	Error        *Failure
	Server, Host string
	Servers      int
	Others       int
	Workers      int
	Running      int
	Stragglers   int
	Rate         string
	Job          string
	For          time.Duration
	Ahead        int64
	More         bool
	Keys         int64
	PerSecond    float64
	Wait         time.Duration
	LoopAge      time.Duration
	Finding      string
	Refusal      string
	Used, Limit  int64
	Version      int
	Missing      string
	Partition    bool
	Whole        int64
}

// The words of the facts that decide.
const (
	stateScheduled = "scheduled"
	stateReady     = "ready"
	stateRunning   = "running"
	stateDead      = "dead"
	stateDone      = "done"

	dueRetry  = "retry"
	dueSnooze = "snooze"
	dueBurst  = "debounce"

	noRecord = "no_record"
)

// Explain returns a verdict in one sentence, and every reason that holds with its text, the
// decisive one first.
func (f *Facts) Explain() (verdict string, reasons []Reason) {
	reasons = f.reasons()
	for i := range reasons {
		reasons[i].Text = sentence(reasons[i].clause(f.At))
	}
	return f.verdict(reasons), reasons
}
