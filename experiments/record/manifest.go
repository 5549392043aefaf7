package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/renameio/v2"
)

// Names of the files of a results folder.
const (
	ManifestName = "manifest.json"
	RecordsName  = "records.jsonl"
)

// ReadManifest reads the manifest of a results folder. The error wraps fs.ErrNotExist when dir is
// not one.
func ReadManifest(dir string) (Manifest, error) {
	path := filepath.Join(dir, ManifestName)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Manifest{}, fmt.Errorf("read manifest: %w (%s is not a results folder; `rampart run` makes one)", err, dir)
	case err != nil:
		return Manifest{}, fmt.Errorf("read manifest: %w", err)
	}
	m, err := decodeManifest(text)
	if err != nil {
		return Manifest{}, fmt.Errorf("read %s: %w", path, err)
	}
	return m, nil
}

func decodeManifest(text []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(text, &m, strict); err != nil {
		if other := otherSchema(text); other != nil {
			return Manifest{}, other
		}
		return Manifest{}, fmt.Errorf("not a manifest: %w", err)
	}
	if m.Schema != Schema {
		return Manifest{}, &SchemaError{Got: m.Schema}
	}
	return m, nil
}

// WriteManifest replaces the manifest of a results folder atomically and durably: at any moment the
// folder holds the old one or the new one, whole.
func WriteManifest(dir string, m Manifest) error {
	m.Schema = Schema
	text, err := json.Marshal(m, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(dir, ManifestName), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return syncDir(dir)
}
