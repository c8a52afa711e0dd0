0	1	the
0	2	a
1	3	weather	0.68
1	4	whether	0.68
2	3	weather	1.02
2	4	whether	1.02
3	5	is	0.02
3	6	was	0.02
4	5	is	0.002
4	6	was	0.002
5	7	find	0.55
5	8	fine	0.55
5	9	vine	0.55
6	7	find	1.63
6	8	fine	1.63
6	9	vine	1.63
7	10	to	0.674
7	11	too	0.674
7	12	two	0.674
7	13	today	0.674
8	10	to	0.755
8	11	too	0.755
8	12	two	0.755
8	13	today	0.755
9	10	to	2.817
9	11	too	2.817
9	12	two	2.817
9	13	today	2.817
10	14	day	6.058
10	15	die	6.058
11	14	day	3.286
11	15	die	3.286
12	14	day	0.001
12	15	die	0.001
13	16	today	0.75
13	1
14	16	today	2.269
14	2.519
15	16	today	0.072
15	0.322
16	0.75
