#pragma once
struct metrics {
    int x;
};
