// From a step's pushes to writes: pure arithmetic, no I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "driver.h"

namespace relevo {

using HandoffId = uint64_t;

struct PagePair {
  uint32_t source;
  uint32_t destination;
};

// A piece of a page: offsets and length in bytes within the source's and the destination's page.
struct Copy {
  uint64_t source;
  uint64_t destination;
  uint64_t length;
};

// Where one layer's pages lie on both sides of a link, and which pieces of a page travel.
struct LayerMap {
  RegionId source_region;
  RegionId destination_region;
  uint64_t source_base;
  uint64_t source_stride;  // bytes from a page to the next
  uint64_t destination_base;
  uint64_t destination_stride;
  std::vector<Copy> copies;

  // The whole page is one piece and pages lie back to back on both sides, so that a run of
  // consecutive pages is one write.
  bool whole_pages() const {
    return copies.size() == 1 && copies[0].source == 0 && copies[0].destination == 0 &&
           copies[0].length == source_stride && copies[0].length == destination_stride;
  }
};

// One hand-off's part in a step.
struct Push {
  HandoffId handoff = 0;
  LinkId link = 0;
  uint32_t slot = 0;
  uint32_t generation = 0;
  std::vector<PagePair> ready;    // complete in every layer: posted at once
  std::vector<PagePair> layered;  // layer l may be posted when the step's counter has passed l
  bool last = false;              // nothing of this hand-off comes after this step
};

// The writes for `pairs` in one layer, tokens left 0. Runs of consecutive pages become one write
// (at most kMaxParts pages each); every other piece is a write of one part.
std::vector<Write> writes_of(const Push& push, const std::vector<PagePair>& pairs,
                             const LayerMap& layer);

}  // namespace relevo
