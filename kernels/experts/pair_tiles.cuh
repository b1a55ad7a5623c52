// Tiles of a few pairs of one expert each, in the shared memory of a block: of few pairs by itself, out of their
// choice, or those of its works from what `expert_order` lists.
#pragma once
#include "experts/grouped.cuh"

// Pairs of a tile, tiles of a block, and pairs that blocks sort by themselves, of rows that a word has bits for.
constexpr uint32_t PAIRS = 4, MOST_TILES = 128, MOST_SORTED = 128;

struct PairTile {
    uint32_t expert, count;
    uint16_t pairs[PAIRS], rows[PAIRS];  // of the latter those of x
};

struct PairTiles {
    PairTile tiles[MOST_TILES];
    uint32_t begun[MOST_SORTED / WARP];  // tiles that begin with a pair of each warp; of several pairs 16 bits higher
};

// Puts pairs into tiles, one for every four pairs of an expert; gives their number. Tiles of several pairs come before
// those of one, so that blocks that take every so many of them have as many of either. By the whole block, with a word
// of shared memory for each expert, which copies may fill behind that: a row has an expert once, and no more than 16
// rows have four tiles of one.
__device__ __forceinline__ uint32_t sort_pairs(
    const ExpertGemmArgs &args, uint32_t pairs, uint32_t *words, PairTiles &own) {
    const uint32_t pair = threadIdx.x, lane = pair % WARP, warp = pair / WARP, row = pair / args.chosen;
    const bool is_pair = pair < pairs;
    uint32_t expert = 0;
    if (is_pair) {
        expert = __float_as_uint(__ldcg(args.choice + (size_t)row * 2 * args.chosen + (pair - row * args.chosen)));
        words[expert] = 0;
    }
    __syncthreads();
    if (is_pair) atomicOr(words + expert, 1u << row);
    __syncthreads();
    const uint32_t rows = is_pair ? words[expert] : 0, before = __popc(rows & ((1u << row) - 1)),
                   place = before % PAIRS;
    const bool begins = is_pair && place == 0, has_several = __popc(rows) - before > 1;
    const uint32_t several = __ballot_sync(ALL_LANES, begins && has_several),
                   single = __ballot_sync(ALL_LANES, begins && !has_several), lower = (1u << lane) - 1;
    if (lane == 0 && warp < MOST_SORTED / WARP) own.begun[warp] = __popc(several) << 16 | __popc(single);
    __syncthreads();
    uint32_t numbers_before = __popc(several & lower) << 16 | __popc(single & lower), begun = 0;
#pragma unroll
    for (uint32_t i = 0; i < MOST_SORTED / WARP; i++) {
        const uint32_t own_begun = own.begun[i];
        if (i < warp) numbers_before += own_begun;
        begun += own_begun;
    }
    const uint32_t of_several = begun >> 16, all = of_several + (begun & 0xffff),
                   tile = has_several ? numbers_before >> 16 : of_several + (numbers_before & 0xffff);
    // The numbers of an expert's tiles take the place of its rows, a byte each.
    uint8_t *numbers = reinterpret_cast<uint8_t *>(words + expert);
    if (begins) {
        numbers[before / PAIRS] = (uint8_t)tile;
        own.tiles[tile].expert = expert, own.tiles[tile].count = min(__popc(rows) - before, PAIRS);
    }
    __syncthreads();
    if (is_pair) {
        PairTile &to = own.tiles[numbers[before / PAIRS]];
        to.pairs[place] = (uint16_t)pair, to.rows[place] = (uint16_t)(args.on_pairs ? pair : row);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    return all;
}

// Takes the tiles of the block's works, of which a tile has `across`, from those that `expert_order` lists.
__device__ __forceinline__ void fetch_tiles(
    const ExpertGemmArgs &args, uint32_t works, uint32_t across, PairTiles &own) {
    for (uint32_t i = threadIdx.x; i < works * PAIRS; i += blockDim.x) {
        const uint32_t number = blockIdx.x + i / PAIRS * gridDim.x, n = i % PAIRS;
        const uint4 listed = __ldcg(reinterpret_cast<const uint4 *>(args.tiles + number / across));
        PairTile &to = own.tiles[i / PAIRS];
        to.expert = listed.x, to.count = listed.z;
        const uint32_t pair = __ldcg(args.order + listed.y + min(n, listed.z - 1));
        to.pairs[n] = (uint16_t)pair, to.rows[n] = (uint16_t)x_row_of(args, pair);
    }
    __syncthreads();
}
