/* disk_room.h - a disk with as much room as a test wants. */
#ifndef MOEFLUX_TESTS_DISK_ROOM_H
#define MOEFLUX_TESTS_DISK_ROOM_H

#include <stdint.h>

/* From now on statvfs finds so many bytes free on every file system. UINT64_MAX: what there is. */
void disk_room_pretend(uint64_t bytes);

#endif
