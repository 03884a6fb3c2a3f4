// Package all adds all parts to a program.
package all

import (
	"net/http"

	"github.com/go-sql-driver/mysql"   // driver mysql
	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx
	_ "modernc.org/sqlite"             // driver sqlite

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/part"
	"github.com/delayq/delayq/handlers/mail"
	"github.com/delayq/delayq/web"
)

func init() {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // the errors say what matters
	part.NewPage = newPage
	part.NewMail = func(server mail.Server, from string, templates map[string]mail.Template, opts ...mail.Option) (delayq.Handler, error) {
		return mail.New(server, from, templates, opts...)
	}
}

func newPage(s *part.PageSetup) (part.Page, error) {
	opts := []web.Option{web.Actor(s.Actor), web.Every(s.Every), web.Badge(s.Badge)}
	if s.Act != nil {
		opts = append(opts, web.Authorize(func(r *http.Request, right web.Right, _ string) error {
			if right == web.RightView || right == web.RightPayload {
				return nil
			}
			return s.Act(r)
		}))
	}
	if s.Language != "" {
		opts = append(opts, web.Language(s.Language))
	}
	for _, origin := range s.Origins {
		opts = append(opts, web.TrustedOrigin(origin))
	}
	if s.Client != nil {
		opts = append(opts, web.Actions(s.Client))
	}
	return web.New(s.Inspector, opts...)
}
