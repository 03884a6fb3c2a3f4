package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
)

//go:embed assets/app.css assets/app.js assets/htmx.min.js assets/icon.svg
var assetFiles embed.FS

//go:embed templates/*.html
var templateFiles embed.FS

// An asset is a file that browsers keep, because its name changes with what it holds.
type asset struct {
	name string
	kind string
	body []byte
}

var assets, assetNames = loadAssets()

// loadAssets returns the files by the names under which they are served, and those names.
func loadAssets() (byName map[string]*asset, names map[string]string) {
	byName, names = make(map[string]*asset), make(map[string]string)
	for file, kind := range map[string]string{
		"app.css": "text/css; charset=utf-8", "app.js": "text/javascript; charset=utf-8",
		"htmx.min.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		body, err := assetFiles.ReadFile("assets/" + file)
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(body)
		base, ext, _ := strings.Cut(file, ".")
		name := base + "-" + hex.EncodeToString(sum[:6]) + "." + ext
		byName[name] = &asset{name, kind, body}
		names[file] = name
	}
	return byName, names
}

// serveAsset answers a request for an asset, and reports whether it was one.
func serveAsset(w http.ResponseWriter, r *http.Request, name string) bool {
	a := assets[name]
	if a == nil || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(a.body) // or the other side has gone
	return true
}

// pages has the template of each page, each together with the layout.
var pages = loadPages()

func loadPages() map[string]*template.Template {
	all := make(map[string]*template.Template)
	common := template.Must(template.New("").Funcs(template.FuncMap{
		"asset": func(file string) string { return assetNames[file] },
		"bars":  bars,
		"dict": func(pairs ...any) map[string]any {
			m := make(map[string]any)
			for i := 0; i+1 < len(pairs); i += 2 {
				m[pairs[i].(string)] = pairs[i+1]
			}
			return m
		},
	}).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	files, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		all[name] = template.Must(template.Must(common.Clone()).ParseFS(templateFiles, file))
	}
	return all
}
