#pragma once
struct admit {
    int x;
};
