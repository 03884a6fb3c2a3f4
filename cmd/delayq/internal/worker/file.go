package worker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/database"
	"github.com/delayq/delayq/handlers/mail"
	"github.com/delayq/delayq/outbox"
)

// A File is what a file says, without mistakes.
type File struct {
	Redis  Redis
	Server Server
	Topics []*Topic // in the order of the file

	databases map[string]*databaseConfig
	redact    *redactor
}

// Redis says how to reach Redis. What the file does not name is empty.
type Redis struct {
	URL, Password, Prefix string
	Cluster               bool
	CA, Cert, Key         string // paths
}

// A Server is the settings of the server as a whole.
type Server struct {
	Lease, Drain time.Duration
	Listen       string // empty: nowhere
}

// Schedules returns the number of schedules of all topics.
func (f *File) Schedules() (n int) {
	for _, t := range f.Topics {
		n += len(t.schedules)
	}
	return n
}

// Serves returns an error if no topic of a file does what a payload asks for. It reads the file as
// Load does, but needs no driver of a database and no mail templates, which are parts of delayqd.
func Serves(path string, getenv func(string) string, topic string, payload []byte) ([]Mistake, error) {
	f, mistakes := loadFile(path, getenv, true)
	if len(mistakes) > 0 {
		return mistakes, nil
	}
	return nil, f.serves(topic, payload)
}

func (f *File) serves(topic string, payload []byte) error {
	var names []string
	for _, t := range f.Topics {
		if t.Name != topic {
			names = append(names, t.Name)
			continue
		}
		if text := t.kind.complaint(payload); text != "" {
			return errors.New(text)
		}
		return nil
	}
	return fmt.Errorf("there is no topic %s; expected one of %s", shown(topic), strings.Join(names, ", "))
}

// A loader reads a file. Its maps hold what topics refer to; a nil entry has a mistake.
type loader struct {
	*reader
	databases map[string]*databaseConfig
	smtp      map[string]*smtpConfig
	check     *checker
	reads     bool // the file is read and not served: no database is opened, and no mail is made
}

// A databaseConfig is a database of the file.
type databaseConfig struct {
	name        string
	dialect     outbox.Dialect
	address     string // as the driver takes it
	connections int
	migrate     bool
	table       string
	keep        time.Duration

	unusable bool // its address has a mistake

	migrated *atomic.Bool // the tables exist
}

// A smtpConfig is a server for mails.
type smtpConfig struct {
	server mail.Server
	ca     string // PEM; empty: the authorities of the system
}

// Load reads a file. If there are mistakes, it returns all of them and no File. It connects to
// nothing. It reads the environment with getenv, and the files that the file names.
func Load(path string, getenv func(string) string) (*File, []Mistake) {
	return loadFile(path, getenv, false)
}

func loadFile(path string, getenv func(string) string, reads bool) (*File, []Mistake) {
	l := &loader{
		reads:     reads,
		reader:    &reader{file: path, dir: filepath.Dir(path), getenv: getenv},
		databases: map[string]*databaseConfig{}, smtp: map[string]*smtpConfig{}, check: newChecker(),
	}
	defer l.check.close()
	text, err := readFile(path, mostFile)
	if err != nil {
		l.at(nil, "%v", err)
		return nil, l.sorted()
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o002 != 0 && runtime.GOOS != "windows" {
		l.at(nil, "everybody can write it (mode %04o), and it says which commands run", info.Mode().Perm())
	}
	var f *File
	if root := l.parse(text); root != nil {
		f = l.read(l.mapping(aliased(root), "the file"))
	}
	if len(l.mistakes) > 0 {
		return nil, l.sorted()
	}
	return f, nil
}

// read reads the file as a whole. What topics refer to is read first.
func (l *loader) read(o *object) *File {
	f := &File{databases: l.databases}
	f.Redis = l.redis(o.object("redis"))
	f.Server = l.server(o.object("server"))
	o.each("databases", func(name string, key, value *yaml.Node) {
		l.databases[name] = l.database(name, l.mapping(value, shown(name)))
	})
	o.each("smtp", func(name string, key, value *yaml.Node) {
		l.smtp[name] = l.smtpServer(l.mapping(value, shown(name)))
	})
	any := o.each("topics", func(name string, key, value *yaml.Node) {
		f.Topics = append(f.Topics, l.topic(name, key, l.mapping(value, shown(name))))
	})
	if !any && !o.has("topics") {
		o.missing("topics: missing; a worker needs at least one")
	}
	o.end()
	f.redact = newRedactor(l.secrets)
	return f
}

func (l *loader) redis(o *object) (r Redis) {
	if o == nil {
		return r
	}
	before := len(l.secrets)
	r.URL, _ = o.value("url", anywhere)
	fromElsewhere := len(l.secrets) > before
	if address := r.URL; address != "" && !fromElsewhere && HasPassword(address) {
		l.at(o.fields["url"].value, "url: has a password, which does not belong into this file; put it into password, or the URL into from_env or from_file")
	}
	r.Password, _ = o.value("password", elsewhere)
	r.Prefix = o.text("prefix")
	if o.has("prefix") {
		l.check.name(l.reader, o.fields["prefix"].value, "prefix", r.Prefix)
	}
	r.Cluster = o.flag("cluster")
	for name, to := range map[string]*string{"tls_ca": &r.CA, "tls_cert": &r.Cert, "tls_key": &r.Key} {
		if *to = o.text(name); *to != "" {
			*to = l.path(*to)
		}
	}
	o.end()
	return r
}

// HasPassword reports whether a URL of Redis holds a password.
func HasPassword(address string) bool {
	_, after, _ := strings.Cut(address, "://")
	user, _, at := strings.Cut(after, "@")
	return at && strings.Contains(user, ":") || strings.Contains(after, "password=")
}

func (l *loader) server(o *object) Server {
	s := Server{Lease: 30 * time.Second, Drain: 20 * time.Second}
	if o == nil {
		return s
	}
	s.Lease = o.span("lease", 100*time.Millisecond, 24*time.Hour, s.Lease)
	s.Drain = o.span("drain", 0, 24*time.Hour, s.Drain)
	s.Listen = o.text("listen")
	if s.Listen != "" {
		if _, _, err := net.SplitHostPort(s.Listen); err != nil {
			l.at(o.fields["listen"].value, "listen: %s; expected HOST:PORT or :PORT", shown(s.Listen))
		}
	}
	o.end()
	return s
}

func (l *loader) database(name string, o *object) *databaseConfig {
	d := &databaseConfig{name: name, unusable: true, migrated: new(atomic.Bool)}
	before := len(l.secrets)
	dsn, found := o.value("dsn", anywhere)
	switch fromElsewhere := len(l.secrets) > before; {
	case !found && !o.has("dsn"):
		o.missing("dsn: missing; expected the address of the database")
	case found && !fromElsewhere && database.HasPassword(dsn):
		l.at(o.fields["dsn"].value, "dsn: has a password, which does not belong into this file; expected {from_env: NAME} or {from_file: PATH}")
		found = false
	}
	dialect := o.choice("dialect", "postgres", "mysql", "mariadb", "sqlite")
	if found {
		var err error
		if d.dialect, d.address, err = database.Parse(dialect, dsn); err != nil {
			l.at(o.fields["dsn"].value, "dsn: %v, or there is a dialect", err)
		} else {
			l.secrets = append(l.secrets, database.Secrets(d.address)...)
			d.unusable = !l.opens(d, o.fields["dsn"].value)
		}
	}
	if d.unusable && dialect != "" { // so that statements can be read
		d.dialect, _ = database.ParseDialect(dialect)
		d.unusable = false
	}
	d.connections = o.number("connections", 1, 1000, 10)
	d.migrate = o.flag("migrate")
	d.table = o.text("table")
	if d.table != "" {
		if _, err := outbox.NewInbox(outbox.SQLite, outbox.Table(d.table)); err != nil {
			l.at(o.fields["table"].value, "table: %s", reason(err))
		}
	}
	d.keep = o.span("keep", time.Hour, 10*365*24*time.Hour, 30*24*time.Hour)
	o.end()
	return d
}

// opens reports whether a database can be opened, and notes why not.
func (l *loader) opens(d *databaseConfig, dsn *yaml.Node) bool {
	if l.reads {
		return true
	}
	db, err := database.Open(d.dialect, d.address)
	if err != nil {
		l.at(dsn, "dsn: %v", err)
		return false
	}
	_ = db.Close() // it has not connected
	return true
}

func (l *loader) smtpServer(o *object) *smtpConfig {
	var s smtpConfig
	if s.server.Host = o.text("host"); s.server.Host == "" && !o.has("host") {
		o.missing("host: missing; expected the name of the server")
	}
	s.server.Port = o.number("port", 1, 65535, 0)
	switch o.choice("encryption", "starttls", "tls", "none") {
	case "tls":
		s.server.Encryption = mail.ImplicitTLS
	case "none":
		s.server.Encryption = mail.Plain
	}
	s.server.Username, _ = o.value("username", anywhere)
	password, _ := o.value("password", elsewhere)
	s.server.Password = mail.Password(password)
	switch {
	case o.has("username") != o.has("password"):
		o.missing("username and password: only one of them is set; expected both or none")
	case o.has("username") && s.server.Encryption == mail.Plain:
		l.at(o.key("username"), "username: with the encryption none the password would be sent unencrypted; expected starttls or tls")
	}
	s.ca = l.authority(o, "tls_ca")
	o.end()
	return &s
}

// authority returns the certificates of a file, or "".
func (l *loader) authority(o *object, name string) string {
	path := o.text(name)
	if path == "" {
		return ""
	}
	pem, err := readFile(l.path(path), mostFile)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
		err = errors.New(shown(path) + " has no certificate in PEM form")
	}
	if err != nil {
		l.at(o.fields[name].value, "%s: %v", name, err)
		return ""
	}
	return string(pem)
}

// trusting returns the settings of TLS that trust the certificates of PEM.
func trusting(pem string) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(pem))
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}

// A checker lets delayq say what is invalid. It never connects.
type checker struct {
	rdb    *redis.Client
	client *delayq.Client
	server *delayq.Server
	over   context.Context // which ends every call after its arguments were checked
}

func newChecker() *checker {
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	over, cancel := context.WithCancel(context.Background())
	cancel()
	return &checker{rdb, delayq.NewClient(rdb), delayq.NewServer(rdb), over}
}

func (c *checker) close() { _ = c.rdb.Close() } // it has not connected

// name notes an invalid name of a topic, a schedule or a prefix.
func (c *checker) name(r *reader, n *yaml.Node, what, name string) {
	for _, text := range complaints(c.client.Schedule(c.over, name, "x", delayq.Every(time.Hour), nil)) {
		r.at(n, "%s", strings.Replace(text, "topic", what, 1))
	}
}

// schedule notes what is invalid about a schedule.
func (c *checker) schedule(r *reader, n *yaml.Node, name string, spec delayq.Spec, payload []byte, opts []delayq.ScheduleOption) {
	for _, text := range complaints(c.client.Schedule(c.over, "x", name, spec, payload, opts...)) {
		r.at(n, "%s", text)
	}
}

// complaints returns what delayq says about arguments.
func complaints(err error) []string {
	if !errors.Is(err, delayq.ErrInvalid) {
		return nil
	}
	return strings.Split(reason(err), "\n")
}

// reason returns the text of an error of delayq without the names of the package and the call.
func reason(err error) string {
	for _, mark := range []string{delayq.ErrInvalid.Error() + ": ", outbox.ErrInvalid.Error() + ": "} {
		if _, rest, ok := strings.Cut(err.Error(), mark); ok {
			return rest
		}
	}
	return err.Error()
}
