package ssh

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// Key is an Ed25519 key pair: a node's host key, or the key that a client logs in with.
type Key struct {
	Signer ssh.Signer
	// Private is the private key in OpenSSH's format (PROTOCOL.key), unencrypted: the content of
	// ssh_host_ed25519_key or of an identity file, which want mode 0600.
	Private []byte
	// Authorized is the public key as a line of authorized_keys or a .pub file, with newline.
	Authorized []byte
}

// NewKey makes a key pair from the system's randomness. The comment ends up in both files.
func NewKey(comment string) (Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("generate key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return Key{}, fmt.Errorf("generate key: %w", err)
	}
	return newKey(pem.EncodeToMemory(block), comment)
}

// ParseKey reads a private key that [NewKey] made, as stored in a file.
func ParseKey(private []byte) (Key, error) { return newKey(private, "") }

func newKey(private []byte, comment string) (Key, error) {
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		return Key{}, fmt.Errorf("parse private key: %w", err)
	}
	authorized := ssh.MarshalAuthorizedKey(signer.PublicKey())
	if comment != "" {
		authorized = append(authorized[:len(authorized)-1], " "+comment+"\n"...)
	}
	return Key{Signer: signer, Private: private, Authorized: authorized}, nil
}
