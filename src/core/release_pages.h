// Pages of a mapped file that are not needed for now: they leave this process's memory, and come back when read.
#pragma once

#include <cstdint>

#include "core/file.h"

namespace megalith {

// Pages with bytes of [offset, offset + length).
void release_pages(const MappedFile& file, int64_t offset, int64_t length);

}  // namespace megalith
