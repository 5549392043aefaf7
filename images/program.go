package images

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// ProgramName is the name of the file on a [ProgramDisk], as Linux shows it.
const ProgramName = "rampart"

// sectorSize is that of ISO 9660, in bytes.
const sectorSize = 2048

// Sectors of a program disk. The first sixteen are nobody's (ECMA-119 §6.2.1).
const (
	volumeSector     = 16
	terminatorSector = 17
	littlePathSector = 18
	bigPathSector    = 19
	folderSector     = 20
	programSector    = 21
)

// ProgramDisk is a disk with one file on it, a program of that many bytes, which Linux runs from there
// without copying it: only what is used of it is read. The file system is ISO 9660 without extensions
// (ECMA-119), which every distribution's kernel can mount. The length is a multiple of 2048 bytes.
func ProgramDisk(program io.Reader, size int64) (disk io.Reader, length int64, err error) {
	// A file has one extent, and its length 32 bits.
	if size < 0 || size >= 1<<32 {
		return nil, 0, fmt.Errorf("make program disk: a program of %d bytes does not fit", size)
	}
	sectors := programSector + (size+sectorSize-1)/sectorSize
	head := make([]byte, programSector*sectorSize)
	sector := func(n int) []byte { return head[n*sectorSize : (n+1)*sectorSize] }
	writeVolume(sector(volumeSector), uint32(sectors))
	copy(sector(terminatorSector), "\xffCD001\x01")
	copy(sector(littlePathSector), pathTable(binary.LittleEndian))
	copy(sector(bigPathSector), pathTable(binary.BigEndian))
	folder := bytes.Join([][]byte{
		folderRecord("\x00", folderSector, sectorSize, isFolder),
		folderRecord("\x01", folderSector, sectorSize, isFolder), // its parent is itself
		folderRecord("RAMPART.;1", programSector, uint32(size), 0),
	}, nil)
	copy(sector(folderSector), folder)
	padding := make([]byte, (sectors-programSector)*sectorSize-size)
	return io.MultiReader(bytes.NewReader(head), io.LimitReader(program, size), bytes.NewReader(padding)), sectors * sectorSize, nil
}

// writeVolume fills the primary volume descriptor (ECMA-119 §8.4). Text that is left out is spaces.
func writeVolume(b []byte, sectors uint32) {
	copy(b, "\x01CD001\x01")
	for _, text := range [][2]int{{8, 72}, {190, 813}} {
		copy(b[text[0]:text[1]], bytes.Repeat([]byte{' '}, text[1]-text[0]))
	}
	copy(b[40:], "RAMPART")
	copy(b[80:], both32(sectors))
	for _, at := range []int{120, 124} { // volumes in the set, and which this is
		copy(b[at:], both16(1))
	}
	copy(b[128:], both16(sectorSize))
	copy(b[132:], both32(uint32(len(pathTable(binary.LittleEndian)))))
	binary.LittleEndian.PutUint32(b[140:], littlePathSector)
	binary.BigEndian.PutUint32(b[148:], bigPathSector)
	copy(b[156:], folderRecord("\x00", folderSector, sectorSize, isFolder))
	stamp := []byte(epoch.Format("20060102150405") + "00\x00")
	for at := 813; at < 881; at += len(stamp) { // made, changed, expires, valid from
		copy(b[at:], stamp)
	}
	b[881] = 1 // version of the structure of folders
}

// pathTable has one entry, the root (ECMA-119 §9.4).
func pathTable(order binary.AppendByteOrder) []byte {
	entry := []byte{1, 0} // length of the name, and of an extended attribute
	entry = order.AppendUint32(entry, folderSector)
	entry = order.AppendUint16(entry, 1) // its parent is itself
	return append(entry, 0, 0)           // the name, and padding
}

// isFolder is the flag of a record that is of a folder.
const isFolder = 2

// folderRecord says where a file or folder is (ECMA-119 §9.1).
func folderRecord(name string, sector, size uint32, flags byte) []byte {
	const fixed = 33
	b := make([]byte, (fixed+len(name)+1)&^1)
	b[0] = byte(len(b))
	copy(b[2:], both32(sector))
	copy(b[10:], both32(size))
	t := epoch.UTC()
	copy(b[18:], []byte{byte(t.Year() - 1900), byte(t.Month()), byte(t.Day()), byte(t.Hour()), byte(t.Minute()), byte(t.Second()), 0})
	b[25] = flags
	copy(b[28:], both16(1)) // of the first volume
	b[32] = byte(len(name))
	copy(b[fixed:], name)
	return b
}

// both16 and both32 are a number in both byte orders, one after the other (ECMA-119 §7.2.3, §7.3.3).
func both16(n uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, n), n)
}

func both32(n uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, n), n)
}
