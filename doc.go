// Package rampart is the root of the module and holds no code: the program is in cmd/rampart, and
// architecture_test.go beside this file says which package may import which.
package rampart
