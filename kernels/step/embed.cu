// An embedding beside the first one: for each row of the batch a row of a table, decoded to f32. One block a row.
#include "step/table_row.cuh"

// Which row of the table stands for a row of the batch.
enum TableRow : uint32_t { OF_TOKEN, OF_POSITION, FIRST_ROW };

struct EmbedArgs {
    Matrix table;
    const Row *rows;
    float *out;
    TableRow row;
    uint32_t pad;
};
static_assert(sizeof(EmbedArgs) == 56, "as in args.rs");

extern "C" __global__ void __launch_bounds__(EMBED_THREADS) embed(const __grid_constant__ EmbedArgs args, Shape) {
    await_then_launch();
    const Row item = args.rows[blockIdx.x];
    const uint32_t index = args.row == OF_TOKEN ? item.token : args.row == OF_POSITION ? item.position : 0;
    put_table_row(args.table, index, args.out + (size_t)blockIdx.x * args.table.cols, threadIdx.x);
}
